#!/usr/bin/env python3
"""Writes the synthetic example problems: the shapes and byte formats of DeepSeek-R1, DeepSeek-V4 and gpt-oss layers, made-up numbers.

    .venv-examples/bin/python tools/make_synthetic.py

The numbers are random but structured as caches are: a decaying spectrum that drifts along the text, a few outlier channels, rotary phases
by position, queries that look for near and far keys, sinks of the size of the scores. They show that a layout is read right. They say
nothing about accuracy, and metadata `note.kind` = "synthetic" says so in each file. Encoders here are numpy and ml_dtypes alone and share
nothing with the library. Seeds are fixed: same machine, same bytes.
"""

import argparse
import math
import pathlib

import ml_dtypes
import numpy as np
import problem_file
from problem_file import bf16

E4M3, E8M0 = ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e8m0fnu
E2M1_VALUES = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], dtype=np.float32)
R1_SCALE = (128 + 64) ** -0.5 * (0.1 * math.log(40) + 1) ** 2  # DeepSeek-R1's own, YaRN factor 40


# --- structure -------------------------------------------------------------------------------------------------------------------------


def drifting_rows(rng, tokens, width, rank=96, outliers=4):
    """[tokens, width]: spectrum ~ 1/(1 + i)^0.6, correlated along the text, `outliers` channels 6 times the rest, rows of RMS 1."""
    steps = rng.standard_normal((tokens, rank))
    topic = np.empty_like(steps)
    topic[0] = steps[0]
    for t in range(1, tokens):
        topic[t] = 0.9 * topic[t - 1] + math.sqrt(1 - 0.9**2) * steps[t]
    topic = 0.6 * topic + 0.8 * rng.standard_normal((tokens, rank))
    spectrum = (1 + np.arange(rank)) ** -0.6
    x = (topic * spectrum) @ rng.standard_normal((rank, width)) + 0.15 * rng.standard_normal((tokens, width))
    gain = np.exp(0.3 * rng.standard_normal(width))
    gain[rng.choice(width, outliers, replace=False)] *= 6
    x = x * gain
    return (x / np.sqrt(np.mean(x * x, axis=1, keepdims=True))).astype(np.float32)


def rotated(x, positions, theta, interleaved):
    """Rotary embedding over the last axis; pairs (2i, 2i + 1), or (i, i + d/2). positions [tokens]."""
    half = x.shape[-1] // 2
    angle = np.asarray(positions)[:, None] * theta ** (-np.arange(half) / half)
    shape = (len(angle),) + (1,) * (x.ndim - 2) + (half,)
    cos, sin = np.cos(angle).reshape(shape), np.sin(angle).reshape(shape)
    a, b = (x[..., 0::2], x[..., 1::2]) if interleaved else (x[..., :half], x[..., half:])
    ra, rb = a * cos - b * sin, b * cos + a * sin
    if interleaved:
        return np.stack([ra, rb], axis=-1).reshape(x.shape).astype(np.float32)
    return np.concatenate([ra, rb], axis=-1).astype(np.float32)


def seeking_queries(rng, keys, positions, heads, sm_scale, spread=2.5):
    """[queries, heads, d] before rotation: each head looks for one near and one far key. Scores over `keys` get a deviation of `spread`."""
    q = np.empty((len(positions), heads, keys.shape[-1]), dtype=np.float32)
    for i, t in enumerate(positions):
        for h in range(heads):
            near, far = rng.integers(max(0, t - 32), t + 1), rng.integers(0, t + 1)
            x = keys[near] + keys[far] + 0.5 * rng.standard_normal(keys.shape[-1])
            z = keys[: t + 1] @ x * sm_scale
            size = float(np.std(z)) if t > 8 else float(np.abs(z).max())
            q[i, h] = x * (spread / max(size, 1e-3))
    return q


# --- encoders --------------------------------------------------------------------------------------------------------------------------


def round_up_exponent(amax, largest):
    """ceil(log2(amax / largest)) without a logarithm."""
    mantissa, exponent = np.frexp(amax.astype(np.float64) / largest)  # amax / largest = mantissa * 2^exponent, mantissa in [0.5, 1)
    return np.clip(np.where(mantissa == 0.5, exponent - 1, exponent), -127, 127)


def e8m0_byte(exponent):
    return (exponent + 127).astype(np.uint8)


def to_mxfp4(x):
    """[..., width] -> packed uint8 [..., width / 2] (even column in the low nibble), e8m0 scales uint8 [..., width / 32]."""
    blocks = x.reshape(*x.shape[:-1], -1, 32).astype(np.float64)
    exponent = round_up_exponent(np.maximum(np.abs(blocks).max(axis=-1), 6 * 2.0**-126), 6.0)
    scaled = np.abs(blocks) / np.exp2(exponent)[..., None]
    code = np.zeros(scaled.shape, dtype=np.uint8)
    for i in range(7):  # a value on the border between two codes goes to the even one
        border = (E2M1_VALUES[i] + E2M1_VALUES[i + 1]) / 2
        code += (scaled > border) | ((scaled == border) & (i % 2 == 1))
    code |= np.signbit(blocks).astype(np.uint8) << 3
    code = code.reshape(x.shape)
    return code[..., 0::2] | (code[..., 1::2] << 4), e8m0_byte(exponent)


def to_e4m3(x):
    """Per tensor: e4m3 and its scale."""
    scale = np.float32(np.abs(x).max() / 448)
    return np.clip(x / scale, -448, 448).astype(E4M3), float(scale)


def to_ds584_pages(x, page):
    """[rows, 512] -> uint8 [pages, stride]: rows of 448 e4m3 + 64 bf16, then 8 bytes of e8m0 scales a row, padded to a multiple of 576."""
    stride = -(-584 * page // 576) * 576
    pages = np.zeros((-(-len(x) // page), stride), dtype=np.uint8)
    x = bf16(x).astype(np.float32)
    tiles = x[:, :448].reshape(-1, 7, 64)
    exponent = round_up_exponent(np.maximum(np.abs(tiles).max(axis=-1), 1e-4), 448.0)
    values = np.clip(tiles / np.exp2(exponent)[..., None], -448, 448).astype(E4M3).reshape(-1, 448).view(np.uint8)
    rope = np.ascontiguousarray(bf16(x[:, 448:])).view(np.uint8)  # [rows, 128]
    for i in range(len(x)):
        p, slot = divmod(i, page)
        pages[p, 576 * slot : 576 * slot + 448] = values[i]
        pages[p, 576 * slot + 448 : 576 * slot + 576] = rope[i]
        pages[p, 576 * page + 8 * slot : 576 * page + 8 * slot + 7] = e8m0_byte(exponent[i])
    return pages


def from_ds584_pages(pages, page, rows):
    out = np.empty((rows, 512), dtype=np.float32)
    for i in range(rows):
        p, slot = divmod(i, page)
        record = pages[p, 576 * slot : 576 * slot + 576]
        scales = pages[p, 576 * page + 8 * slot : 576 * page + 8 * slot + 7].view(E8M0).astype(np.float32)
        out[i, :448] = (record[:448].view(E4M3).astype(np.float32).reshape(7, 64) * scales[:, None]).reshape(448)
        out[i, 448:] = record[448:].view(ml_dtypes.bfloat16).astype(np.float32)
    return out


def indptr(lengths):
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)


# --- DeepSeek-R1 MLA decode ------------------------------------------------------------------------------------------------------------


def r1_request(rng, kv_len, q_len, heads=16):
    latent = drifting_rows(rng, kv_len, 512)
    kpe = 3 * drifting_rows(rng, kv_len, 64, rank=16, outliers=2)
    positions = np.arange(kv_len - q_len, kv_len)
    q = seeking_queries(rng, np.concatenate([latent, kpe], axis=1), positions, heads, R1_SCALE)
    q[..., 512:] = rotated(q[..., 512:], positions, 10000.0, interleaved=True)
    return q, np.concatenate([latent, rotated(kpe, np.arange(kv_len), 10000.0, interleaved=True)], axis=1)


def write_r1(out):
    rng = np.random.default_rng(20260001)
    kv_lens, q_lens = (241, 64, 1), (1, 2, 1)
    requests = [r1_request(rng, n, m) for n, m in zip(kv_lens, q_lens)]
    q, kv = bf16(np.concatenate([r[0] for r in requests])), np.concatenate([r[1] for r in requests])
    shared = {"q": q, "qo_indptr": indptr(q_lens)}
    ragged = shared | {"kv.0.kv_indptr": indptr(kv_lens)}
    meta = {"sm_scale": R1_SCALE, "kv.0.rule": "causal", "kv.0.value_width": 512, "note.kind": "synthetic"}
    about = "shaped as DeepSeek-R1 MLA decode on one of 8 ranks (16 heads, 576/512); random structured numbers"

    problem_file.write(
        out / "r1_mla_ragged_bf16.safetensors", ragged | {"kv.0.latent": bf16(kv)[:, None]}, meta | {"text": about + ", ragged bf16"}
    )
    fp8, scale = to_e4m3(kv)
    problem_file.write(
        out / "r1_mla_ragged_fp8.safetensors",
        ragged | {"kv.0.latent": fp8[:, None], "kv.0.k_scale": np.array([scale], dtype=np.float32)},
        meta | {"text": about + ", ragged e4m3 with one scale"},
    )
    codes, scales = to_mxfp4(kv)
    problem_file.write(
        out / "r1_mla_ragged_mxfp4.safetensors",
        ragged | {"kv.0.bytes": codes[:, None], "kv.0.scales": scales[:, None]},
        meta | {"kv.0.format": "mxfp4", "kv.0.width": 576, "text": about + ", ragged MXFP4"},
    )

    page = 32
    counts = [-(-n // page) for n in kv_lens]
    order = rng.permutation(sum(counts) + 1)  # one page belongs to nobody
    table = np.full((len(kv_lens), max(counts)), 2147480000, dtype=np.int32)  # unused entries hold what engines leave there
    cache, begin, used = np.full((len(order), page, 576), np.nan, dtype=np.float32), 0, 0
    for b, n in enumerate(kv_lens):
        for j in range(counts[b]):
            rows = kv[begin + j * page : begin + min(n, (j + 1) * page)]
            table[b, j] = order[used]
            cache[order[used], : len(rows)] = rows
            used += 1
        begin += n
    problem_file.write(
        out / "r1_mla_paged_bf16.safetensors",
        shared | {"kv.0.latent": bf16(cache)[:, :, None], "kv.0.block_table": table, "kv.0.seq_lens": np.array(kv_lens, dtype=np.int32)},
        meta | {"text": about + ", paged bf16, unused rows NaN"},
    )


# --- DeepSeek-V4 layers ----------------------------------------------------------------------------------------------------------------

V4_THETA = 160000.0


def v4_layer(rng, context, ratio):
    """Unrotated keys of all tokens, and the two stores in bf16-able float32: window rows, compressed rows."""
    content = drifting_rows(rng, context, 512)
    gate = np.exp(rng.standard_normal((context, 512)))
    overlap = 2 if ratio == 4 else 1  # CSA blocks also read the block before
    blocks = np.empty((context // ratio, 512))
    for i in range(len(blocks)):
        rows = slice(max(0, (i - overlap + 1) * ratio), (i + 1) * ratio)
        blocks[i] = (gate[rows] * content[rows]).sum(axis=0) / gate[rows].sum(axis=0)
    blocks /= np.sqrt(np.mean(blocks * blocks, axis=1, keepdims=True))
    window = content.copy()
    window[:, 448:] = rotated(content[:, 448:], np.arange(context), V4_THETA, interleaved=True)
    blocks[:, 448:] = rotated(blocks[:, 448:], np.arange(len(blocks)) * ratio, V4_THETA, interleaved=True)
    return content, window, blocks.astype(np.float32)


def v4_parts(rng, context, ratio, q_len, heads, window_page):
    """Queries, sinks, and the window source that keeps only the pages its window still reaches."""
    content, window, blocks = v4_layer(rng, context, ratio)
    positions = np.arange(context - q_len, context)
    q = seeking_queries(rng, content, positions, heads, 512**-0.5)
    q[..., 448:] = rotated(q[..., 448:], positions, V4_THETA, interleaved=True)
    first = max(0, positions[0] - 127) // window_page * window_page
    pages = to_ds584_pages(window[first:], window_page)
    tensors = {
        "q": bf16(q),
        "context_lens": np.array([context], dtype=np.int32),
        "sinks": (2.0 + 1.5 * rng.standard_normal(heads)).astype(np.float32),
        "kv.0.bytes": pages,
        "kv.0.block_table": np.arange(len(pages), dtype=np.int32)[None],
        "kv.0.seq_lens": np.array([context - first], dtype=np.int32),
        "kv.0.first_position": np.array([first], dtype=np.int32),
    }
    meta = {"sm_scale": 512**-0.5, "note.kind": "synthetic"}
    for s in (0, 1):
        meta |= {f"kv.{s}.format": "fp8_ds_584", f"kv.{s}.width": 512, f"kv.{s}.value_width": 512}
    meta |= {"kv.0.page_size": window_page, "kv.0.rule": "window", "kv.0.window_left": 127}
    return q, positions, blocks, tensors, meta


def write_v4_csa(out):
    rng = np.random.default_rng(20260002)
    context, q_len, heads, topk, page = 620, 2, 64, 64, 64
    q, positions, blocks, tensors, meta = v4_parts(rng, context, 4, q_len, heads, page)
    pages = to_ds584_pages(blocks, page)
    stored = from_ds584_pages(pages, page, len(blocks))
    indices = np.full((q_len, topk), -1, dtype=np.int32)
    for i, t in enumerate(positions):
        complete = (t + 1) // 4
        score = np.maximum(q[i] @ stored[:complete].T, 0).sum(axis=0)  # what an indexer would do
        chosen = np.argsort(-score, kind="stable")[:topk]
        indices[i, : len(chosen)] = chosen
    tensors |= {"kv.1.bytes": pages, "kv.1.indices": indices}
    meta |= {"kv.1.page_size": page, "kv.1.rule": "gathered"}
    meta["text"] = "shaped as a DeepSeek-V4 CSA layer (64 heads, window 128, 64 of the ratio-4 pool, sinks), 584-byte records; random structured numbers"
    problem_file.write(out / "v4_csa.safetensors", tensors, meta)


def write_v4_hca(out):
    rng = np.random.default_rng(20260003)
    context, q_len, heads, page = 1536, 2, 64, 2  # the last query completes block 11 and sees it; the one before it does not
    _, _, blocks, tensors, meta = v4_parts(rng, context, 128, q_len, heads, 64)
    pages = to_ds584_pages(blocks, page)
    tensors |= {
        "kv.1.bytes": pages,
        "kv.1.block_table": np.arange(len(pages), dtype=np.int32)[None],
        "kv.1.seq_lens": np.array([len(blocks)], dtype=np.int32),
    }
    meta |= {"kv.1.page_size": page, "kv.1.rule": "compressed", "kv.1.ratio": 128}
    meta["text"] = "shaped as a DeepSeek-V4 HCA layer (64 heads, window 128, blocks of 128, sinks), 584-byte records; random structured numbers"
    problem_file.write(out / "v4_hca.safetensors", tensors, meta)


# --- gpt-oss ---------------------------------------------------------------------------------------------------------------------------


def write_gpt_oss(out):
    rng = np.random.default_rng(20260004)
    tokens, q_len, heads, kv_heads, d = 224, 4, 64, 8, 64
    positions = np.arange(tokens - q_len, tokens)
    tensors = {}
    meta = {"sm_scale": d**-0.5, "note.kind": "synthetic"}
    for n in (0, 1):  # the model alternates: window layers and full ones
        k, q = np.empty((tokens, kv_heads, d), dtype=np.float32), np.empty((q_len, heads, d), dtype=np.float32)
        v = np.empty_like(k)
        for g in range(kv_heads):
            content = 2 * drifting_rows(rng, tokens, d, rank=32, outliers=2)
            content[:, rng.integers(d)] += 6  # a channel with a mean far from 0
            k[:, g] = rotated(content, np.arange(tokens), 150000.0, interleaved=False)
            v[:, g] = drifting_rows(rng, tokens, d, rank=32, outliers=1)
            group = slice(g * heads // kv_heads, (g + 1) * heads // kv_heads)
            found = seeking_queries(rng, content, positions, heads // kv_heads, d**-0.5)
            q[:, group] = rotated(found, positions, 150000.0, interleaved=False)
        p = f"layers.{n}."
        tensors |= {p + "q": bf16(q), p + "kv.0.k": bf16(k), p + "kv.0.v": bf16(v)}
        tensors[p + "sinks"] = (2.0 + 1.5 * rng.standard_normal(heads)).astype(np.float32)
        meta |= {p + "kv.0.rule": "window", p + "kv.0.window_left": 127} if n == 0 else {p + "kv.0.rule": "causal"}
    meta["text"] = "shaped as two gpt-oss layers (64 query heads, 8 KV heads, d 64, sinks; one window of 128, one full); random structured numbers"
    problem_file.write(out / "gpt_oss_gqa.safetensors", tensors, meta)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parent.parent / "examples", help="folder to write to")
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    write_r1(out)
    write_v4_csa(out)
    write_v4_hca(out)
    write_gpt_oss(out)


if __name__ == "__main__":
    main()
