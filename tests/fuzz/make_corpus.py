#!/usr/bin/env python3
"""Writes the seed files of the fuzz targets: valid files of each kind, small, for the fuzzer to bend. No dependencies."""
import json
import os
import struct

here = os.path.dirname(os.path.abspath(__file__))
BYTES = {"F32": 4, "BF16": 2, "I32": 4, "U8": 1, "F8_E8M0": 1, "F8_E4M3": 1, "I64": 8}


def safetensors(name, metadata, tensors):
    header, data = {"__metadata__": metadata}, b""
    for key, (dtype, shape, values) in tensors.items():
        count = 1
        for d in shape:
            count *= d
        raw = struct.pack(f"<{len(values)}i", *values) if values else bytes(i % 60 for i in range(count * BYTES[dtype]))
        header[key] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header, separators=(",", ":")).encode()
    write("fuzz_safetensors", name, struct.pack("<Q", len(text)) + text + data)


def write(target, name, data):
    folder = os.path.join(here, "corpus", target)
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, name), "wb") as f:
        f.write(data)


plain = {"q": ("F32", [2, 2, 4], None), "kv.0.k": ("F32", [3, 1, 4], None), "kv.0.v": ("F32", [3, 1, 2], None)}
safetensors("empty", {}, {})
safetensors("ragged", {"sm_scale": "0.5", "kv.0.rule": "causal"}, plain)
safetensors("window", {"sm_scale": "0.5", "kv.0.rule": "window", "kv.0.window_left": "1", "note": "n"},
            plain | {"sinks": ("F32", [2], None), "context_lens": ("I32", [1], [3])})
safetensors("paged", {"sm_scale": "1", "kv.0.rule": "full", "kv.0.value_width": "4"},
            {"q": ("BF16", [1, 2, 4], None), "kv.0.latent": ("BF16", [2, 2, 1, 4], None),
             "kv.0.block_table": ("I32", [1, 2], [1, 0]), "kv.0.seq_lens": ("I32", [1], [3])})
safetensors("mxfp4", {"sm_scale": "1", "kv.0.rule": "gathered", "kv.0.format": "mxfp4", "kv.0.value_width": "32"},
            {"q": ("F32", [1, 1, 32], None), "kv.0.bytes": ("U8", [2, 1, 16], None), "kv.0.scales": ("F8_E8M0", [2, 1, 1], None),
             "kv.0.indices": ("I32", [1, 2], [1, -1])})
safetensors("layers", {"sm_scale": "1", "kv.0.rule": "full", "layers.3.text": "t"}, {"layers.3." + k: v for k, v in plain.items()})
# fuzz_problem: which file, then edits (kind, name, type, shape, values).
for kind in range(5):
    write("fuzz_problem", f"kind{kind}", bytes([kind]))
write("fuzz_problem", "lengths", bytes([1, 0, 1, 10, 0, 1, 2, 9, 7]))
write("fuzz_problem", "table", bytes([1, 0, 1, 8, 0, 2, 2, 3, 0, 1, 2, 255, 4, 254]))
write("fuzz_problem", "rule", bytes([0, 2, 1, 0, 9, 2, 1, 1, 1]))
