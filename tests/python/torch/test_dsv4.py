"""dsv4_attention: one test for each fault of the code it replaces. T = 3, group 4, N = 300, distinct sinks, lse beyond 100."""

import unittest

import numpy as np
import torch
from reference import assert_close, assert_lse, attention

import headwater

B, H, HKV, T, N, D = 2, 8, 2, 3, 300, 64
SINKS = np.linspace(-3, 150, H).astype(np.float32)


def inputs(seed=0, size=1.0, n=N, d=D, t=T):
    rng = np.random.default_rng(seed)
    make = lambda *shape: (size * rng.standard_normal(shape)).astype(np.float32)  # noqa: E731
    return make(B, H, t, d), make(B, HKV, n, d), make(B, HKV, n, d)


def expect(q, k, v, *, scale=None, swa_len=None, is_causal=False, n_comp=0, sinks=None):
    n, t = k.shape[2], q.shape[2]

    def visible(i, j):
        if j < n_comp:
            return True
        at = (n - n_comp) - t + i
        if swa_len is not None:
            return at - swa_len < j - n_comp <= at
        return j - n_comp <= at if is_causal else True

    return attention(q, k, v, q.shape[-1] ** -0.5 if scale is None else scale, visible, sinks)


def run(q, k, v, **arguments):
    sinks = arguments.pop("sinks", None)
    tensors = [torch.from_numpy(a) if a is not None else None for a in (q, k, v)]
    out, lse = headwater.dsv4_attention(*tensors, sink_bias=None if sinks is None else torch.from_numpy(sinks), return_lse=True, **arguments)
    return out.numpy(), lse.numpy()


class Dsv4(unittest.TestCase):
    def compare(self, q, k, v, **arguments):
        out, lse = run(q, k, v, **arguments)
        want, want_lse = expect(q, k, k if v is None else v, **arguments)
        assert_close(out, want)
        assert_lse(lse, want_lse)

    def test_heads_stay_in_place_with_several_tokens(self):
        q, k, v = inputs()
        for h in range(H):  # every head and token a size of its own: a swap of (T, group) shows
            q[:, h] *= 1 + h
        q[:, :, 1] *= -1
        self.compare(q, k, v, is_causal=True, sinks=SINKS)

    def test_mask_does_not_restart_at_128_keys(self):
        q, k, v = inputs(1)
        for swa in (1, 100, 128, 129, 200, 1000):
            with self.subTest(swa=swa):
                k[:, :, N - T - 1] = 0
                self.compare(q, k, v, swa_len=swa)
        self.compare(q, k, v, is_causal=True)

    def test_sink_enters_once_for_each_head(self):
        q, k, v = inputs(2)
        self.compare(q, k, v, sinks=SINKS, swa_len=150, n_comp=140)
        per_request = np.stack([SINKS, SINKS[::-1]]).copy()
        self.compare(q, k, v, sinks=per_request, swa_len=150, n_comp=140)

    def test_lse_beyond_the_range_of_exp(self):
        q, k, v = inputs(3, size=8.0)
        out, lse = run(q, k, v, sinks=SINKS, n_comp=160, swa_len=64)
        self.assertGreater(np.abs(lse).max(), 100)
        want, want_lse = expect(q, k, v, sinks=SINKS, n_comp=160, swa_len=64)
        assert_close(out, want, 1e-4)
        assert_lse(lse, want_lse)

    def test_two_empty_parts_merge_to_nothing(self):
        q, k, v = inputs(4, n=2)
        out, lse = run(q, k, v, is_causal=True, sinks=SINKS)  # T = 3 > N = 2: the first query sees nothing
        self.assertTrue(np.all(out[:, :, 0] == 0) and np.all(np.isneginf(lse[:, :, 0])))
        self.compare(q, k, v, is_causal=True, sinks=SINKS)
        out, lse = run(q, k[:, :, :0], v[:, :, :0])
        self.assertTrue(np.all(out == 0) and np.all(np.isneginf(lse)))

    def test_no_padded_key_is_counted(self):
        for n in (1, 3, 127, 129, 255, 257):
            with self.subTest(n=n):
                q, k, v = inputs(5, n=n)
                self.compare(q - 1.0, k + 1.0, v)  # all scores far below 0: a zero-padded key would win

    def test_scale_is_used(self):
        q, k, v = inputs(6)
        for scale in (0.0, 0.01, 1.0, -0.5):
            with self.subTest(scale=scale):
                self.compare(q, k, v, scale=scale)

    def test_batch_is_one_launch(self):
        q, k, v = inputs(7)
        calls = []

        class Counting(torch.utils._python_dispatch.TorchDispatchMode):
            def __torch_dispatch__(self, func, types, args=(), kwargs=None):
                if "headwater" in str(func):
                    calls.append(str(func))
                return func(*args, **(kwargs or {}))

        with Counting():
            headwater.dsv4_attention(*map(torch.from_numpy, (q, k, v)), swa_len=128, n_comp=100)
        self.assertEqual(len(calls), 1, calls)

    def test_head_width_512(self):
        q, k, _ = inputs(8, d=512, n=140)
        self.compare(q, k, None, swa_len=128, n_comp=12, sinks=SINKS)

    def test_every_count_of_compressed_rows(self):
        q, k, v = inputs(9, n=40)
        for n_comp in (0, 1, 36, 37, 38, 39, 40):
            with self.subTest(n_comp=n_comp):
                self.compare(q, k, v, n_comp=n_comp, swa_len=5, sinks=SINKS)

    def test_shapes_without_batch_and_shared_keys(self):
        q, k, v = inputs(10)
        tq, tk, tv = map(torch.from_numpy, (q, k, v))
        shared = headwater.dsv4_attention(tq, tk[0], tv[0], swa_len=20, n_comp=10)
        whole = headwater.dsv4_attention(tq, tk[:1].expand(B, -1, -1, -1), tv[:1].expand(B, -1, -1, -1), swa_len=20, n_comp=10)
        self.assertTrue(torch.equal(shared, whole))
        one = headwater.dsv4_attention(tq[0], tk[0], tv[0], swa_len=20, n_comp=10)
        self.assertEqual(one.shape, (H, T, D))
        self.assertTrue(torch.equal(one, shared[0]))
        flat = headwater.dsv4_attention(tq, tk[0, 0], tv[0, 0])
        assert_close(flat.numpy(), expect(q, np.broadcast_to(k[:1, :1], (B, 1, N, D)), np.broadcast_to(v[:1, :1], (B, 1, N, D)))[0])

    def test_refusals_name_the_field(self):
        q, k, v = map(torch.from_numpy, inputs(11))
        for arguments, words in (
            ({"n_comp": N + 1}, "n_comp = 301"),
            ({"swa_len": 0}, "swa_len = 0"),
            ({"sink_bias": torch.zeros(3)}, "sinks.shape = [3]"),
            ({"sink_bias": torch.zeros(H, dtype=torch.float64)}, "sinks.dtype"),
        ):
            with self.assertRaisesRegex(RuntimeError, words.replace("[", r"\[").replace("]", r"\]")):
                headwater.dsv4_attention(q, k, v, **arguments)
        with self.assertRaisesRegex(RuntimeError, "h_q = 8"):
            headwater.dsv4_attention(q, k[:, :1].expand(-1, 3, -1, -1), v[:, :1].expand(-1, 3, -1, -1))

    def test_warmup(self):
        headwater.warmup(heads=4, n=16)


if __name__ == "__main__":
    unittest.main()
