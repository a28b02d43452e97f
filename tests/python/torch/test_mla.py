"""mla_decode in every format against float64, and one test for each fault of the code it replaces."""

import unittest

import numpy as np
import torch
from reference import assert_close, row

import headwater

H, WIDTH, VALUE = 16, 576, 512
CONFIG = {"v_head_dim": VALUE, "qk_head_dim": WIDTH, "batch": 99}
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


def make(lengths, q_lens, seed=0):
    """(q, latent bf16 [total, 1, 576], qo_indptr, kv_indptr)"""
    g = torch.Generator().manual_seed(seed)
    q = torch.randn(sum(q_lens), H, WIDTH, generator=g).bfloat16()
    kv = torch.randn(sum(lengths), 1, WIDTH, generator=g).bfloat16()
    offsets = lambda x: torch.tensor([0, *np.cumsum(x)], dtype=torch.int32)  # noqa: E731
    return q, kv, offsets(q_lens), offsets(lengths)


def expect(q, decoded, qo, kv, scale):
    """decoded [total, 576] float64"""
    q = q.double().numpy()
    out = np.zeros((q.shape[0], H, VALUE))
    for b in range(len(qo) - 1):
        keys = decoded[int(kv[b]) : int(kv[b + 1])]
        n_q = int(qo[b + 1] - qo[b])
        for i in range(n_q):
            seen = keys[: max(0, len(keys) - n_q + i + 1)]
            for h in range(H):
                out[int(qo[b]) + i, h] = row(scale * seen @ q[int(qo[b]) + i, h], seen[:, :VALUE])[0]
    return out


def mxfp4(kv, seed=1):
    """Random codes and scales in padded, column-major storage: (bytes, scales, decoded)."""
    rng = np.random.default_rng(seed)
    total = kv.shape[0]
    codes = rng.integers(0, 256, (total, 1, WIDTH // 2), dtype=np.uint8)
    scales = rng.integers(122, 130, (32, total + 7), dtype=np.uint8).T  # rows and columns of padding
    scales[total:] = 255
    scales[:, 18:] = 255
    values = np.stack([E2M1[codes & 15], E2M1[codes >> 4]], -1).reshape(total, WIDTH)
    decoded = values * np.exp2(scales[:total, :18].astype(np.float64) - 127).repeat(32, -1)
    return torch.from_numpy(codes), torch.from_numpy(scales), decoded


class Mla(unittest.TestCase):
    def setUp(self):
        self.q, self.kv, self.qo, self.kvp = make([70, 0, 1, 200], [1, 1, 2, 3])

    def test_bf16(self):
        out = headwater.mla_decode(self.q, {"bf16": self.kv}, self.qo, self.kvp, CONFIG)
        self.assertEqual(out.dtype, torch.bfloat16)
        assert_close(out.double().numpy(), expect(self.q, self.kv[:, 0].double().numpy(), self.qo, self.kvp, WIDTH**-0.5), 6e-3)

    def test_fp8(self):
        scale = torch.tensor(0.037)
        data = (self.kv.float() / scale).clamp(-448, 448).to(torch.float8_e4m3fn)
        out = headwater.mla_decode(self.q, {"fp8": (data, scale)}, self.qo, self.kvp, CONFIG)
        decoded = data[:, 0].float().double().numpy() * float(scale)
        assert_close(out.double().numpy(), expect(self.q, decoded, self.qo, self.kvp, WIDTH**-0.5), 6e-3)

    def test_mxfp4_with_padded_scales_of_any_stride(self):
        codes, scales, decoded = mxfp4(self.kv)
        self.assertEqual(scales.stride(0), 1)
        for stored in (codes, codes.view(torch.float4_e2m1fn_x2)):
            out = headwater.mla_decode(self.q, {"mxfp4": (stored, scales)}, self.qo, self.kvp, CONFIG)
            assert_close(out.double().numpy(), expect(self.q, decoded, self.qo, self.kvp, WIDTH**-0.5), 6e-3)

    def test_empty_requests_are_zero(self):
        for data in ({"bf16": self.kv}, {"mxfp4": mxfp4(self.kv)[:2]}):
            out = headwater.mla_decode(self.q, data, self.qo, self.kvp, CONFIG)
            self.assertTrue(torch.all(out[1] == 0))  # no keys at all
            self.assertTrue(torch.all(out[2] == 0))  # the first of two queries over one key
            self.assertFalse(torch.all(out[3] == 0))

    def test_order_of_formats_and_scales(self):
        codes, scales, _ = mxfp4(self.kv)
        fp8 = (self.kv.to(torch.float8_e4m3fn), torch.tensor(1.0))
        everything = {"bf16": self.kv, "mxfp4": (codes, scales), "fp8": fp8}
        decode = lambda data, **more: headwater.mla_decode(self.q, data, self.qo, self.kvp, CONFIG, **more)  # noqa: E731
        self.assertTrue(torch.equal(decode(everything), decode({"fp8": fp8})))
        del everything["fp8"]
        self.assertTrue(torch.equal(decode(everything), decode({"mxfp4": (codes, scales)})))
        self.assertTrue(torch.equal(decode(everything, kv_format="bf16"), decode({"bf16": self.kv})))
        by_config = headwater.mla_decode(self.q, {"bf16": self.kv}, self.qo, self.kvp, {**CONFIG, "sm_scale": 0.1})
        self.assertTrue(torch.equal(by_config, decode({"bf16": self.kv}, sm_scale=0.1)))
        self.assertFalse(torch.equal(by_config, decode({"bf16": self.kv})))

    def test_a_plan_serves_every_layer(self):
        problem = headwater.mla_problem(self.q, {"bf16": self.kv}, self.qo, self.kvp, CONFIG)
        plan = headwater.Plan(problem)
        for seed in range(3):
            layer = torch.randn(self.kv.shape, generator=torch.Generator().manual_seed(seed)).bfloat16()
            out = headwater.mla_decode(self.q, {"bf16": layer}, self.qo, self.kvp, CONFIG, plan=plan)
            assert_close(out.double().numpy(), expect(self.q, layer[:, 0].double().numpy(), self.qo, self.kvp, WIDTH**-0.5), 6e-3)
        plan.check()
        longer = self.kvp.clone()
        longer[0] = 1
        with self.assertRaises(RuntimeError):
            headwater.mla_decode(self.q, {"bf16": self.kv}, self.qo, longer, CONFIG, plan=plan)

    def test_padding_rows_are_not_read(self):
        q = torch.cat([self.q, torch.full((2, H, WIDTH), float("nan"), dtype=torch.bfloat16)])
        out = headwater.mla_decode(q, {"bf16": self.kv}, self.qo, self.kvp, CONFIG)
        self.assertTrue(torch.all(out[-2:] == 0))

    def test_refusals_name_the_field(self):
        decode = lambda q, data, qo=self.qo, **more: headwater.mla_decode(q, data, qo, self.kvp, CONFIG, **more)  # noqa: E731
        for arguments, words in (
            ((self.q.float(), {"bf16": self.kv}), "q.dtype"),
            ((self.q, {}), "kv_format"),
            ((self.q, {"bf16": self.kv[..., :500]}), r"kv_data\['bf16'\].shape"),
            ((self.q, {"bf16": self.kv}, self.qo.long()), "qo_indptr.dtype"),
            ((self.q, {"mxfp4": (torch.zeros(271, 1, 288, dtype=torch.uint8), torch.zeros(5, 18, dtype=torch.uint8))}), "scales.shape"),
        ):
            with self.assertRaisesRegex(RuntimeError, words):
                decode(*arguments)


if __name__ == "__main__":
    unittest.main()
