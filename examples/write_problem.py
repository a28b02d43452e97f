#!/usr/bin/env python3
"""Writes one problem file of each common kind: examples of docs/problem_files.md for people with numpy (pip install numpy safetensors).

    python3 write_problem.py DIR && headwater run DIR/gqa_decode.safetensors --check

Random numbers: these show names and shapes, not what a format costs in accuracy.
"""
import os
import sys

import numpy as np
from safetensors.numpy import save_file

rng = np.random.default_rng(1)


def normal(*shape):
    return rng.standard_normal(shape, dtype=np.float32)


def bf16(x):
    """numpy has no bf16: the upper half of a float32 (rounded to even) as uint16, and a metadata key that says so."""
    bits = x.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def gqa_decode(path):
    """The three-line case: one request, one new token, 32 query heads over 8 KV heads, float16."""
    q, k, v = (normal(n, h, 128).astype(np.float16) for n, h in ((1, 32), (500, 8), (500, 8)))
    save_file({"q": q, "kv.0.k": k, "kv.0.v": v}, path, metadata={"sm_scale": str(128**-0.5), "kv.0.rule": "causal"})


def paged_batch(path):
    """Three requests of 1, 2 and 1 new tokens, K and V in pages of 16 as bf16, a window, and a sink per head."""
    lens = np.array([40, 7, 90], np.int32)
    pages = (lens + 15) // 16
    table = np.zeros((3, pages.max()), np.int32)
    order = rng.permutation(pages.sum()).astype(np.int32)
    for request, n in enumerate(pages):
        table[request, :n] = order[pages[:request].sum() :][:n]
    save_file(
        {
            "q": bf16(normal(4, 8, 64)),
            "qo_indptr": np.array([0, 1, 3, 4], np.int32),
            "sinks": normal(8),
            "kv.0.k": bf16(normal(pages.sum(), 16, 2, 64)),
            "kv.0.v": bf16(normal(pages.sum(), 16, 2, 64)),
            "kv.0.block_table": table,
            "kv.0.seq_lens": lens,
        },
        path,
        metadata={"sm_scale": "0.125", "q_type": "bf16", "kv.0.format": "bf16", "kv.0.rule": "window", "kv.0.window_left": "31"},
    )


def mxfp4_latent(path):
    """MLA decode: K and V in one latent of 576 columns, MXFP4 records with their scales apart. V is the first 512 columns."""
    codes = rng.integers(0, 256, (200, 1, 288), dtype=np.uint8)  # two e2m1 a byte, the even column in the low nibble
    scales = rng.integers(124, 128, (200, 1, 18), dtype=np.uint8)  # 2 ** (byte - 127)
    save_file(
        {"q": normal(2, 16, 576), "qo_indptr": np.array([0, 1, 2], np.int32), "kv.0.bytes": codes, "kv.0.scales": scales,
         "kv.0.kv_indptr": np.array([0, 150, 200], np.int32)},
        path,
        metadata={"sm_scale": "0.0416667", "kv.0.rule": "causal", "kv.0.format": "mxfp4", "kv.0.value_width": "512"},
    )


def window_and_topk(path):
    """Two sources under one softmax: the last 64 tokens, and 16 entries that an indexer picked from a pool of compressed ones."""
    picked = np.stack([rng.permutation(100)[:16] for _ in range(2)]).astype(np.int32)
    picked[0, 12:] = -1  # this query wants only 12
    save_file(
        {
            "q": normal(2, 8, 128), "context_lens": np.array([300], np.int32),
            "kv.0.latent": normal(64, 1, 128), "kv.0.first_position": np.array([236], np.int32),
            "kv.1.latent": normal(100, 1, 128), "kv.1.indices": picked,
        },
        path,
        metadata={"sm_scale": "0.1", "kv.0.rule": "window", "kv.0.window_left": "62", "kv.0.value_width": "128",
                  "kv.1.rule": "gathered", "kv.1.value_width": "128", "note": "shaped as a layer with sparse attention; random numbers"},
    )


def capture(path):
    """Several layers in one file; what they share stands without a layer."""
    tensors = {"qo_indptr": np.array([0, 1], np.int32)}
    for layer in (0, 5):
        tensors |= {f"layers.{layer}.q": normal(1, 4, 64), f"layers.{layer}.kv.0.k": normal(80, 4, 64), f"layers.{layer}.kv.0.v": normal(80, 4, 64)}
    save_file(tensors, path, metadata={"sm_scale": "0.125", "kv.0.rule": "causal", "layers.5.note": "the middle one"})


def main():
    folder = sys.argv[1] if len(sys.argv) > 1 else "."
    os.makedirs(folder, exist_ok=True)
    for write in (gqa_decode, paged_batch, mxfp4_latent, window_and_topk, capture):
        path = os.path.join(folder, write.__name__ + ".safetensors")
        write(path)
        print(path)


if __name__ == "__main__":
    main()
