"""headwater.flash_mla against the contract of FlashMLA's kernels, written from their documentation; float64, one row at a time."""

import sys
import types
import unittest

import numpy as np
import torch
from reference import assert_close, row

import headwater
from headwater import flash_mla

B, TOKENS, H, VALUE = 3, 2, 16, 512


def lse_close(got, want):
    got = np.asarray(got, np.float64)
    assert np.array_equal(np.isposinf(got), np.isneginf(want)), "an empty row's lse must be +inf, no other's"
    at = np.isfinite(want)
    assert np.all(np.abs(got[at] - want[at]) <= 1e-4 + 1e-5 * np.abs(want[at])), np.abs(got[at] - want[at]).max()


def dense_case(lengths, width=576, page=64, seed=0, dtype=torch.bfloat16):
    """Pages in random order; what no entry lives in is NaN, unused table entries absurd."""
    g = torch.Generator().manual_seed(seed)
    per = [-(-n // page) for n in lengths]
    cache = torch.full((sum(per) + 2, page, 1, width), float("nan"))
    table = torch.full((len(lengths), max(per) + 1), 2147480000, dtype=torch.int32)
    order, at = torch.randperm(cache.shape[0], generator=g), 0
    latents = []
    for b, n in enumerate(lengths):
        latent = torch.randn(n, width, generator=g)
        latents.append(latent.to(dtype).double().numpy())
        for p in range(per[b]):
            table[b, p] = order[at]
            part = latent[p * page : (p + 1) * page]
            cache[order[at], : len(part), 0] = part
            at += 1
    q = torch.randn(len(lengths), TOKENS, H, width, generator=g).to(dtype)
    return q, cache.to(dtype), table, torch.tensor(lengths, dtype=torch.int32), latents


def dense_expect(q, latents, causal, scale):
    q = q.double().numpy()
    out, lse = np.zeros((*q.shape[:3], VALUE)), np.zeros((q.shape[0], H, TOKENS))
    for b, latent in enumerate(latents):
        for i in range(TOKENS):
            seen = latent[: max(0, len(latent) - TOKENS + i + 1)] if causal else latent
            for h in range(H):
                out[b, i, h], lse[b, h, i] = row(scale * seen @ q[b, i, h], seen[:, :VALUE])
    return out, lse


def sparse_expect(q, pools, sinks=None, scale=None):
    """pools: [(rows [slots, width], indices [b, t, k], lens [b] or None)]"""
    q = q.double().numpy()
    b, tokens, heads, width = q.shape
    scale = width**-0.5 if scale is None else scale
    out, lse = np.zeros((b, tokens, heads, VALUE)), np.zeros((b, heads, tokens))
    for bi in range(b):
        for i in range(tokens):
            seen = []
            for rows, indices, lens in pools:
                listed = indices[bi, i].tolist()
                listed = listed if lens is None else listed[: int(lens[bi])]
                seen += [rows[s] for s in listed if 0 <= s < len(rows)]
            seen = np.array(seen).reshape(-1, width)
            for h in range(heads):
                out[bi, i, h], lse[bi, h, i] = row(scale * seen @ q[bi, i, h], seen[:, :VALUE], None if sinks is None else float(sinks[h]))
    return out, lse


def record_pool(fmt, width, slots_per_page, pages, seed):
    """A pool in a byte format, filled by append; what it decodes to. One page is left as NaN bytes."""
    g = torch.Generator().manual_seed(seed)
    nominal = {"fp8_ds_656": 656, "fp8_ds_584": 584}[fmt]
    stride = -(-nominal * slots_per_page // 576) * 576 if fmt == "fp8_ds_584" else nominal * slots_per_page
    storage = torch.full((pages, stride), 0x7F, dtype=torch.uint8)
    cache = storage.as_strided((pages, slots_per_page, 1, nominal), (stride, nominal, nominal, 1))
    source = headwater.Source(k=cache, format=fmt, value_width=VALUE)
    slots = torch.arange((pages - 1) * slots_per_page)
    headwater.append(source, torch.randn(len(slots), 1, width, generator=g), slots=slots)
    decoded = np.full((pages * slots_per_page, width), np.nan)
    decoded[: len(slots)] = headwater.gather(source, slots)[0][:, 0].double().numpy()
    return cache, decoded, len(slots)


class Dense(unittest.TestCase):
    def test_both_widths_and_both_masks(self):
        for width in (576, 512):
            for causal in (False, True):
                with self.subTest(width=width, causal=causal):
                    q, cache, table, lens, latents = dense_case([70, 1, 130], width)
                    meta, nothing = flash_mla.get_mla_metadata()
                    self.assertIsNone(nothing)
                    out, lse = flash_mla.flash_mla_with_kvcache(q, cache, table, lens, VALUE, meta, nothing, causal=causal)
                    want, want_lse = dense_expect(q, latents, causal, width**-0.5)
                    self.assertEqual((out.dtype, lse.dtype, tuple(lse.shape)), (torch.bfloat16, torch.float32, (B, H, TOKENS)))
                    assert_close(out.double().numpy(), want, 6e-3)
                    lse_close(lse, want_lse)
                    self.assertTrue(meta.have_initialized)

    def test_empty_requests(self):
        q, cache, table, lens, latents = dense_case([0, 1, 64])
        for causal in (False, True):
            out, lse = flash_mla.flash_mla_with_kvcache(q, cache, table, lens, VALUE, flash_mla.get_mla_metadata()[0], causal=causal, softmax_scale=0.1)
            want, want_lse = dense_expect(q, latents, causal, 0.1)
            self.assertTrue(torch.all(out[0] == 0) and torch.all(torch.isposinf(lse[0])))
            assert_close(out.double().numpy(), want, 6e-3)
            lse_close(lse, want_lse)

    def test_older_metadata_is_never_trusted(self):
        q, cache, table, lens, latents = dense_case([70, 1, 130])
        meta, splits = flash_mla.get_mla_metadata(lens, TOKENS * H, 1)
        self.assertEqual((meta.dtype, splits.dtype, splits.shape[0]), (torch.int32, torch.int32, B + 1))
        big_meta, big_splits = torch.empty(128, 8, dtype=torch.int32), torch.empty(65, dtype=torch.int32)
        big_meta[: meta.shape[0]].copy_(meta)  # what engines do for CUDA graphs
        big_splits[: B + 1].copy_(splits)
        want = flash_mla.flash_mla_with_kvcache(q, cache, table, lens, VALUE, meta, splits, causal=True)
        wild = torch.randint(-(2**31), 2**31 - 1, (128, 8), dtype=torch.int32)
        for other in ((big_meta[: meta.shape[0]], big_splits[: B + 1]), (wild, wild[:, 0]), (None, None)):
            got = flash_mla.flash_mla_with_kvcache(q, cache, table, lens, VALUE, *other, causal=True)
            self.assertTrue(torch.equal(got[0], want[0]) and torch.equal(got[1], want[1]))
        assert_close(want[0].double().numpy(), dense_expect(q, latents, True, 576**-0.5)[0], 6e-3)

    def test_metadata_survives_new_lengths(self):
        meta = flash_mla.get_mla_metadata()[0]
        for lengths in ([70, 1, 130], [1, 200, 3]):
            q, cache, table, lens, latents = dense_case(lengths, seed=sum(lengths))
            out, _ = flash_mla.flash_mla_with_kvcache(q, cache, table, lens, VALUE, meta, None, causal=True)
            assert_close(out.double().numpy(), dense_expect(q, latents, True, 576**-0.5)[0], 6e-3)

    def test_fp8_with_descale_and_out(self):
        q, cache, table, lens, _ = dense_case([70, 1, 130])
        q8, cache8 = q.to(torch.float8_e4m3fn), cache.to(torch.float8_e4m3fn)
        descale_q, descale_k = torch.tensor([0.5]), torch.tensor([2.5])
        latents = [np.stack([cache8[int(table[b, j // 64]), j % 64, 0].float().numpy() for j in range(int(lens[b]))]).astype(np.float64) * 2.5 for b in range(B)]
        want, want_lse = dense_expect(q8.float() * 0.5, latents, True, 0.04)
        out, lse = flash_mla.flash_mla_with_kvcache_fp8(q8, cache8, table, lens, VALUE, *flash_mla.get_mla_metadata_dense_fp8(lens), 0.04, True, descale_q, descale_k)
        self.assertEqual(out.dtype, torch.bfloat16)
        assert_close(out.double().numpy(), want, 6e-3)
        lse_close(lse, want_lse)
        given = torch.empty_like(out)
        got, _ = flash_mla.flash_mla_with_kvcache(q8, cache8, table, lens, VALUE, None, None, 0.04, True, descale_q=descale_q, descale_k=descale_k, out=given)
        self.assertEqual(got.data_ptr(), given.data_ptr())
        self.assertTrue(torch.equal(given, out))


class Sparse(unittest.TestCase):
    def lists(self, live, k, seed):
        g = torch.Generator().manual_seed(seed)
        indices = torch.stack([torch.randperm(live, generator=g)[:k] for _ in range(B * TOKENS)]).view(B, TOKENS, k).int()
        indices[:, :, 1] = -1  # in the middle, not only at the end
        indices[1, 0] = -1  # nothing at all
        return indices

    def test_v32_records(self):
        for page in (1, 2, 53, 64):
            with self.subTest(page=page):
                cache, rows, live = record_pool("fp8_ds_656", 576, page, 130 // page + 2, 1)
                indices = self.lists(live, 96, 2)
                q = torch.randn(B, TOKENS, H, 576, generator=torch.Generator().manual_seed(3)).bfloat16()
                out, lse = flash_mla.flash_mla_with_kvcache(q, cache.view(torch.float8_e4m3fn), None, None, VALUE, flash_mla.get_mla_metadata()[0], is_fp8_kvcache=True, indices=indices)
                want, want_lse = sparse_expect(q, [(rows, indices, None)])
                self.assertTrue(torch.all(out[1, 0] == 0) and torch.all(torch.isposinf(lse[1, :, 0])))
                assert_close(out.double().numpy(), want, 6e-3)
                lse_close(lse, want_lse)

    def test_v4_window_and_compressed_pools(self):
        window, window_rows, live = record_pool("fp8_ds_584", 512, 64, 4, 4)
        extra, extra_rows, extra_live = record_pool("fp8_ds_584", 512, 2, 40, 5)
        indices, extra_indices = self.lists(live, 64, 6), self.lists(extra_live, 50, 7)
        lens, extra_lens = torch.tensor([64, 10, 1], dtype=torch.int32), torch.tensor([0, 50, 33], dtype=torch.int32)
        indices[0, 0, 20:] = (live + 5)  # the NaN page: listed, so this row is honest NaN unless a length cuts it
        lens[0] = 20
        sinks = torch.linspace(-2, 8, H)
        sinks[0], sinks[1] = float("-inf"), float("inf")
        q = torch.randn(B, TOKENS, H, 512, generator=torch.Generator().manual_seed(8)).bfloat16()
        out, lse = flash_mla.flash_mla_with_kvcache(
            q, window, None, None, VALUE, flash_mla.get_mla_metadata()[0], is_fp8_kvcache=True, indices=indices, attn_sink=sinks, extra_k_cache=extra,
            extra_indices_in_kvcache=extra_indices, topk_length=lens, extra_topk_length=extra_lens, softmax_scale=512**-0.5,
        )  # fmt: skip
        want, want_lse = sparse_expect(q, [(window_rows, indices, lens), (extra_rows, extra_indices, extra_lens)], sinks)
        self.assertTrue(torch.all(out[:, :, 1] == 0))  # sink +inf
        self.assertTrue(torch.all(torch.isfinite(out)))
        assert_close(out.double().numpy(), want, 6e-3)
        lse_close(lse, want_lse)

    def test_prefill(self):
        g = torch.Generator().manual_seed(9)
        for width in (576, 512):
            s_q, s_kv, k = 7, 90, 40
            q, kv = torch.randn(s_q, H, width, generator=g).bfloat16(), torch.randn(s_kv, 1, width, generator=g).bfloat16()
            kv[77] = float("nan")
            indices = torch.stack([torch.randperm(s_kv, generator=g)[:k] for _ in range(s_q)]).int()
            indices[indices == 77] = s_kv + 3  # out of range = none
            indices[:, 3] = -5
            indices[2] = -1
            lens = torch.tensor([40, 0, 40, 5, 39, 1, 20], dtype=torch.int32)
            indices[3, 6] = 77  # past its length
            sinks = torch.linspace(-2, 4, H)
            out, max_logits, lse = flash_mla.flash_mla_sparse_fwd(q, kv, indices[:, None], 0.5, VALUE, sinks, lens)
            rows = kv[:, 0].double().numpy()
            for i in range(s_q):
                seen = [int(s) for s in indices[i, : int(lens[i])] if 0 <= s < s_kv]
                for h in range(H):
                    z = 0.5 * rows[seen] @ q[i, h].double().numpy()
                    want, want_lse = row(z, rows[seen][:, :VALUE], float(sinks[h]))
                    assert_close(out[i, h].double().numpy(), want, 6e-3)
                    lse_close(lse[i, h], np.float64(want_lse))
                    self.assertAlmostEqual(float(max_logits[i, h]), z.max() if seen else -np.inf, delta=1e-3)
            whole, first = flash_mla.flash_mla_sparse_fwd(q, kv, indices[:, None], 0.5, VALUE, indexer_topk=8)[2:]
            part = flash_mla.flash_mla_sparse_fwd(q, kv, indices[:, None, :8].contiguous(), 0.5, VALUE)[2]
            torch.testing.assert_close(first, part, equal_nan=True)
            self.assertEqual(whole.shape, first.shape)

    def test_refusals(self):
        q, cache, table, lens, _ = dense_case([70, 1, 130])
        indices = torch.zeros(B, TOKENS, 4, dtype=torch.int32)
        f = flash_mla.flash_mla_with_kvcache
        for call, words in (
            (lambda: f(q, cache, None, None, VALUE), "block_table"),
            (lambda: f(q, cache, table, lens, VALUE, causal=True, indices=indices), "causal = True"),
            (lambda: f(q, cache, table, lens, VALUE, topk_length=lens), "topk_length"),
            (lambda: f(q, cache, table, lens.long(), VALUE), "seq_lens.dtype"),
            (lambda: f(q, cache[:, :, 0], table, lens, VALUE), "k_cache.shape"),
            (lambda: f(q, cache, table, lens, 600), "value_width = 600"),
            (lambda: f(q, cache, table, lens, VALUE, indices=indices[:1]), "indices.shape"),
            (lambda: f(q, cache, table, lens, VALUE, is_fp8_kvcache=True), "is_fp8_kvcache"),
        ):
            with self.subTest(words=words), self.assertRaisesRegex(RuntimeError, words):
                call()


class Install(unittest.TestCase):
    def test_import_and_names_already_bound(self):
        ops, backend = types.ModuleType("vllm.v1.attention.ops.flashmla"), types.ModuleType("vllm.v1.attention.backends.mla.flashmla")

        def theirs(*_):
            raise AssertionError("the vendored kernel was called")

        ops.flash_mla_with_kvcache = backend.flash_mla_with_kvcache = ops.get_mla_metadata = theirs
        ops.is_flashmla_dense_supported = lambda: (False, "no GPU")
        sys.modules.update({ops.__name__: ops, backend.__name__: backend})
        try:
            uninstall = flash_mla.install()
            import flash_mla as imported

            self.assertIs(imported.flash_mla_sparse_fwd, flash_mla.flash_mla_sparse_fwd)
            self.assertIs(backend.flash_mla_with_kvcache, flash_mla.flash_mla_with_kvcache)
            self.assertIs(ops.get_mla_metadata, flash_mla.get_mla_metadata)
            self.assertEqual(ops.is_flashmla_dense_supported(), (True, None))
            uninstall()
            self.assertIs(backend.flash_mla_with_kvcache, theirs)
            self.assertNotIn("flash_mla", sys.modules)
        finally:
            for module in (ops, backend):
                del sys.modules[module.__name__]


if __name__ == "__main__":
    unittest.main()
