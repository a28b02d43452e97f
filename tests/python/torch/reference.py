"""Attention by its definition in float64, one query row and head at a time: no tiles, no packing, no shared code with the library."""

import numpy as np


def row(scores, values, sink=None, softcap=0.0):
    """(out, lse) of one row; scores [n] already masked by leaving entries out."""
    scores = np.asarray(scores, np.float64)
    if softcap:
        scores = softcap * np.tanh(scores / softcap)
    if len(scores) == 0 or np.all(scores == -np.inf):
        return np.zeros(values.shape[-1]), -np.inf
    top = scores.max()
    weights = np.exp(scores - top)
    total = weights.sum() + (0.0 if sink is None else np.exp(np.float64(sink) - top))
    return weights @ np.asarray(values, np.float64)[: len(scores)] / total, top + np.log(weights.sum())


def attention(q, k, v, scale, visible, sinks=None, softcap=0.0):
    """q (b, h, T, d), k, v (b, h_kv, N, d); visible(i, j) of query i and key j; sinks (h,) or (b, h). Returns float64 (out, lse)."""
    b, h, t, _ = q.shape
    group, n = h // k.shape[1], k.shape[2]
    out, lse = np.zeros((b, h, t, v.shape[-1])), np.zeros((b, h, t))
    q, k, v = (np.asarray(a, np.float64) for a in (q, k, v))
    for bi in range(b):
        for hi in range(h):
            sink = None if sinks is None else (sinks[bi, hi] if np.ndim(sinks) == 2 else sinks[hi])
            for i in range(t):
                seen = [j for j in range(n) if visible(i, j)]
                keys = k[bi, hi // group][seen]
                out[bi, hi, i], lse[bi, hi, i] = row(scale * keys @ q[bi, hi, i], v[bi, hi // group][seen], sink, softcap)
    return out, lse


def assert_close(got, expect, relative=2e-5, name="out"):
    """By rows: the L2 error of each against its own size; a row of zeros must be zeros."""
    got, expect = np.asarray(got, np.float64), np.asarray(expect, np.float64)
    assert got.shape == expect.shape, f"{name}: shape {got.shape}, expected {expect.shape}"
    assert np.array_equal(np.isnan(got), np.isnan(expect)), f"{name}: NaN in other places"
    error = np.linalg.norm(got - expect, axis=-1)
    bound = relative * np.maximum(np.linalg.norm(expect, axis=-1), 1e-30)
    zero = np.linalg.norm(expect, axis=-1) == 0
    assert np.all(error[zero] == 0), f"{name}: rows that must be zero are not"
    worst = (error / bound)[~zero]
    assert worst.size == 0 or worst.max() <= 1, f"{name}: worst row is {worst.max():.3g} of its allowance"


def assert_lse(got, expect):
    got, expect = np.asarray(got, np.float64), np.asarray(expect, np.float64)
    assert np.array_equal(np.isneginf(got), np.isneginf(expect)), "lse: -inf in other places"
    finite = np.isfinite(expect)
    error = np.abs(got[finite] - expect[finite])
    allowed = 1e-4 + 1e-5 * np.abs(expect[finite])
    assert np.all(error <= allowed), f"lse: off by {error.max():.3g}"
