"""Writes problem files: safetensors with the tensor names and metadata of docs/problem_files.md. Same input, same bytes."""

import json

import ml_dtypes
import numpy as np

DTYPE_NAMES = {
    np.dtype(np.float32): "F32",
    np.dtype(np.float16): "F16",
    np.dtype(ml_dtypes.bfloat16): "BF16",
    np.dtype(ml_dtypes.float8_e4m3fn): "F8_E4M3",
    np.dtype(ml_dtypes.float8_e5m2): "F8_E5M2",
    np.dtype(ml_dtypes.float8_e8m0fnu): "F8_E8M0",
    np.dtype(np.int8): "I8",
    np.dtype(np.uint8): "U8",
    np.dtype(np.int32): "I32",
    np.dtype(np.int64): "I64",
}


def bf16(x):
    return np.asarray(x, dtype=np.float32).astype(ml_dtypes.bfloat16)


def write(path, tensors, metadata):
    """tensors: {name: array}; metadata: {name: anything that str() tells exactly}."""
    header, offset = {"__metadata__": {k: str(v) for k, v in metadata.items()}}, 0
    for name, array in tensors.items():
        header[name] = {"dtype": DTYPE_NAMES[array.dtype], "shape": list(array.shape), "data_offsets": [offset, offset + array.nbytes]}
        offset += array.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(len(text).to_bytes(8, "little") + text)
        for array in tensors.values():
            f.write(np.ascontiguousarray(array).tobytes())
    print(f"{path}: {8 + len(text) + offset} bytes, {len(tensors)} tensors")
