"""The installed package with numpy alone: no torch, no compiler."""

import sys
import unittest

import numpy as np

import headwater

if "torch" in sys.modules:
    raise SystemExit("import headwater must not import torch")


def reference(q, k, v, causal=False, sinks=None):
    group, n, t = q.shape[1] // k.shape[1], k.shape[2], q.shape[2]
    k, v = (np.repeat(np.asarray(a, np.float64), group, 1) for a in (k, v))
    z = np.asarray(q, np.float64) @ k.swapaxes(2, 3) * q.shape[-1] ** -0.5
    if causal:
        z = np.where(np.arange(n) <= np.arange(t)[:, None] + n - t, z, -np.inf)
    top = z.max(-1, keepdims=True)
    p = np.exp(z - top)
    total = p.sum(-1, keepdims=True)
    lse = (top + np.log(total))[..., 0]
    if sinks is not None:
        total = total + np.exp(sinks[:, None, None] - top)
    return p @ v / total, lse


class Numpy(unittest.TestCase):
    def setUp(self):
        rng = np.random.default_rng(0)
        make = lambda *shape: rng.standard_normal(shape, dtype=np.float32)  # noqa: E731
        self.q, self.k, self.v = make(2, 4, 3, 64), make(2, 2, 50, 64), make(2, 2, 50, 32)

    def test_attention(self):
        sinks = np.linspace(-1, 3, 4).astype(np.float32)
        out, lse = headwater.attention(self.q, self.k, self.v, is_causal=True, sinks=sinks, return_lse=True)
        want, want_lse = reference(self.q, self.k, self.v, True, sinks)
        np.testing.assert_allclose(out, want, atol=1e-5)
        np.testing.assert_allclose(lse, want_lse, atol=1e-4)

    def test_views_and_out(self):
        k = np.concatenate([self.k, self.k], -1)[..., :64]
        want = headwater.attention(self.q, self.k, self.v)
        self.assertTrue(np.array_equal(headwater.attention(self.q, k, self.v), want))
        one = self.k[:1, :, :, :]
        self.assertTrue(np.array_equal(headwater.attention(self.q, np.broadcast_to(one, self.k.shape)), headwater.attention(self.q, np.repeat(one, 2, 0))))
        for out in (np.empty((2, 4, 3, 32), np.float32), np.empty((2, 3, 4, 32), np.float32).swapaxes(1, 2)):
            self.assertIs(headwater.attention(self.q, self.k, self.v, out=out), out)
            self.assertTrue(np.array_equal(out, want))

    def test_nothing_visible(self):
        out, lse = headwater.attention(self.q, self.k[:, :, :0], self.v[:, :, :0], return_lse=True)
        self.assertTrue(np.all(out == 0) and np.all(np.isneginf(lse)))
        out, lse = headwater.attention(self.q, self.k[:, :, :2], self.v[:, :, :2], is_causal=True, return_lse=True)
        self.assertTrue(np.all(out[:, :, 0] == 0) and np.all(np.isneginf(lse[:, :, 0])))

    def test_plan(self):
        k, v = np.ascontiguousarray(self.k[0].swapaxes(0, 1)), np.ascontiguousarray(self.v[0].swapaxes(0, 1))
        q = np.ascontiguousarray(self.q[0].swapaxes(0, 1))
        indptr = lambda *x: np.array(x, np.int32)  # noqa: E731
        problem = headwater.Problem(q=q, sources=[headwater.Source(k=k, v=v, kv_indptr=indptr(0, 50), rule="causal")], qo_indptr=indptr(0, 3), scale=0.125)
        plan = headwater.Plan(problem)
        out = plan.schedule(problem).run(problem)
        want, _ = reference(self.q[:1], self.k[:1], self.v[:1], True)
        np.testing.assert_allclose(out.swapaxes(0, 1), want[0], atol=1e-5)
        plan.check()

    def test_append_gather_merge(self):
        store = np.zeros((8, 2, 34), np.uint8)
        cache = headwater.Source(k=store, format="q8_0", value_width=32)
        rows = np.random.default_rng(1).standard_normal((3, 2, 32), dtype=np.float32)
        headwater.append(cache, rows, slots=np.array([5, -1, 0]))
        k, _ = headwater.gather(cache, np.array([5, 0]))
        np.testing.assert_allclose(k, rows[[0, 2]], atol=0.05)
        a = np.ones((1, 1, 4), np.float32)
        out, lse = headwater.merge_states(a, np.full((1, 1), 300, np.float32), 3 * a, np.full((1, 1), 300, np.float32))
        np.testing.assert_allclose(out, 2 * a)
        np.testing.assert_allclose(lse, 300 + np.log(2), rtol=1e-6)

    def test_refusals(self):
        for call, words in (
            (lambda: headwater.attention(self.q, self.k[..., :32], self.v), "k.shape"),
            (lambda: headwater.attention(self.q, self.k.astype(np.float64), self.v), "k.dtype"),
            (lambda: headwater.attention(self.q, self.k.tolist(), self.v), "k = list"),
            (lambda: headwater.Plan(headwater.Problem(q=self.q[0], sources=[headwater.Source(k=self.k[0])], qo_indptr=np.zeros(2, np.int64), scale=1.0)), "dtype"),
        ):
            with self.assertRaisesRegex(headwater.Error, words):
                call()

    def test_formats_and_backends(self):
        self.assertIn("mxfp4", headwater.FORMATS)
        self.assertEqual(headwater.backends()[0]["name"], "cpu")

    def test_parts_that_need_torch_say_so(self):
        with self.assertRaisesRegex(ImportError, "torch"):
            headwater.warmup()


if __name__ == "__main__":
    unittest.main()
