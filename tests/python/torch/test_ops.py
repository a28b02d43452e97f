"""The dispatcher operators: opcheck, fullgraph compilation with dynamic shapes, plans, errors, bits against another path."""

import unittest

import numpy as np
import torch
from reference import assert_close, assert_lse, attention

import headwater
from headwater._attention import arange, full

headwater.warmup(heads=4, n=16)
OPS = torch.ops.headwater


def paged_problem(lengths=(5, 0, 70), q_lens=(1, 2, 3), heads=4, heads_kv=2, d=64, page=16, seed=0, dtype=torch.float32, rule="causal"):
    g = torch.Generator().manual_seed(seed)
    pages = [max(1, -(-n // page)) for n in lengths]
    total = sum(pages) + 3
    order = torch.randperm(total, generator=g)
    table = torch.full((len(lengths), max(pages)), -1, dtype=torch.int32)
    at = 0
    for b, n in enumerate(pages):
        table[b, :n] = order[at : at + n].int()
        at += n
    cache = torch.randn(total, 2, page, heads_kv, d, generator=g).to(dtype)
    source = headwater.Source(k=cache[:, 0], v=cache[:, 1], block_table=table, seq_lens=torch.tensor(lengths, dtype=torch.int32), rule=rule)
    q = torch.randn(sum(q_lens), heads, d, generator=g).to(dtype)
    indptr = torch.tensor([0, *np.cumsum(q_lens)], dtype=torch.int32)
    return headwater.Problem(q=q, sources=[source], qo_indptr=indptr, scale=d**-0.5, sinks=torch.linspace(-1, 3, heads))


def by_definition(p):
    source, out, lses = p.sources[0], [], []
    for b in range(len(p.qo_indptr) - 1):
        n = int(source.seq_lens[b])
        rows = [(int(source.block_table[b, j // source.k.shape[1]]), j % source.k.shape[1]) for j in range(n)]
        k, v = (torch.stack([a[r] for r in rows]) if rows else a.new_zeros((0, *a.shape[2:])) for a in (source.k, source.v))
        q = p.q[int(p.qo_indptr[b]) : int(p.qo_indptr[b + 1])]
        t = q.shape[0]
        o, lse = attention(q.numpy().swapaxes(0, 1)[None], k.numpy().swapaxes(0, 1)[None], v.numpy().swapaxes(0, 1)[None], p.scale, lambda i, j, n=n, t=t: j <= n - t + i, p.sinks.numpy())
        out.append(o[0].swapaxes(0, 1))
        lses.append(lse[0].swapaxes(0, 1))
    return np.concatenate(out), np.concatenate(lses)


class Operators(unittest.TestCase):
    def test_paged_against_the_definition(self):
        p = paged_problem()
        out, lse = headwater.attend(p, return_lse=True)
        want, want_lse = by_definition(p)
        assert_close(out.numpy(), want)
        assert_lse(lse.numpy(), want_lse)

    def test_opcheck(self):
        p = paged_problem()
        tensors, descriptor, numbers = p.pack()
        plan = headwater.Plan(p)
        plan.schedule(p)
        out, lse = torch.empty_like(p.q), torch.empty(p.q.shape[:2])
        check = torch.library.opcheck
        check(OPS.attend.default, (p.q, tensors, descriptor, numbers, True))
        check(OPS.attend.default, (p.q, tensors, descriptor, numbers, False))
        check(OPS.attend.out, (p.q, tensors, descriptor, numbers), {"out": out, "lse": lse})
        check(OPS.attend.out, (p.q, tensors, descriptor, numbers), {"out": out, "lse": None})
        check(OPS.schedule.default, (p.q, tensors, descriptor, numbers, plan.bounds, plan.schedule_buffer))
        check(OPS.run.default, (p.q, tensors, descriptor, numbers, plan.bounds, plan.schedule_buffer, plan.scratch_buffer, out, lse))
        a, b = torch.randn(5, 2, 8), torch.randn(5, 2, 8)
        check(OPS.merge_states.default, (a, torch.randn(5, 2), b, torch.randn(5, 2)))
        check(OPS.merge_states.out, (a, torch.randn(5, 2), b, torch.randn(5, 2)), {"out": torch.empty_like(a), "lse": torch.empty(5, 2)})
        cache = headwater.Source(k=torch.zeros(8, 2, 34, dtype=torch.uint8), format="q8_0", value_width=32)
        from headwater._describe import _Tensors, pack_source

        known = _Tensors()
        fields, scales = pack_source(cache, known)
        slots = torch.tensor([3, -1, 0])
        check(OPS.append.default, (known.list, fields, scales, torch.randn(3, 2, 32), None, None, slots, 0))
        check(OPS.gather.out, (known.list, fields, scales, slots.abs()), {"k": torch.empty(3, 2, 32), "v": torch.empty(3, 2, 32)})

    def test_compiles_whole_with_dynamic_shapes(self):
        torch._dynamo.reset()
        traced = []

        def backend(graph, inputs):
            traced.append(graph)
            return graph

        f = torch.compile(lambda q, k, v: headwater.attention(q, k, v, is_causal=True), fullgraph=True, dynamic=True, backend=backend)
        for b, t, n in ((6, 3, 50), (3, 5, 70), (5, 7, 33)):
            q, k, v = torch.randn(b, 4, t, 64), torch.randn(b, 2, n, 64), torch.randn(b, 2, n, 32)
            self.assertTrue(torch.equal(f(q, k, v), headwater.attention(q, k, v, is_causal=True)))
        self.assertEqual(len(traced), 1, "compiled again for another size")

    def test_compiles_dsv4_and_a_plan(self):
        torch._dynamo.reset()
        f = torch.compile(lambda q, k: headwater.dsv4_attention(q, k, swa_len=8, n_comp=10), fullgraph=True, backend="aot_eager")
        q, k = torch.randn(2, 4, 3, 64), torch.randn(2, 1, 40, 64)
        self.assertTrue(torch.equal(f(q, k), headwater.dsv4_attention(q, k, swa_len=8, n_comp=10)))
        p = paged_problem()
        plan = headwater.Plan(p)
        plan.schedule(p)
        tensors, descriptor, numbers = p.pack()

        def layer(q, tensors, schedule, scratch):
            out = torch.empty_like(q)
            OPS.run(q, tensors, descriptor, numbers, plan.bounds, schedule, scratch, out, None)
            return out + 1

        g = torch.compile(layer, fullgraph=True, backend="aot_eager")
        got = g(p.q, tensors, plan.schedule_buffer, plan.scratch_buffer)
        self.assertTrue(torch.equal(got, plan.run(p) + 1))

    def test_a_plan_for_more_than_its_example(self):
        plan = headwater.Plan(paged_problem(), max_requests=6, max_total_q=16, max_q_len=4, max_len=200)
        self.assertTrue(plan.kernel)
        for seed, lengths, q_lens in ((1, (5, 0, 70), (1, 2, 3)), (2, (200, 1, 33, 16), (1, 1, 4, 1))):
            p = paged_problem(lengths, q_lens, seed=seed)
            out = plan.schedule(p).run(p)
            assert_close(out.numpy(), by_definition(p)[0])
        with self.assertRaisesRegex(RuntimeError, "requests|max_len|kv_len"):
            plan.schedule(paged_problem((300,), (1,)))

    def test_strided_views_are_read_in_place(self):
        storage = torch.randn(2, 50, 3, 4, 64)  # qkv of a fused projection
        q, k, v = (storage[:, :, i].transpose(1, 2) for i in range(3))
        same = headwater.attention(q.contiguous(), k.contiguous(), v.contiguous(), is_causal=True)
        self.assertTrue(torch.equal(headwater.attention(q, k, v, is_causal=True), same))
        one = torch.randn(1, 2, 50, 64)
        self.assertTrue(torch.equal(headwater.attention(q, one.expand(2, 2, 50, 64), one.expand(2, 2, 50, 64)), headwater.attention(q, one.repeat(2, 1, 1, 1), one.repeat(2, 1, 1, 1))))
        odd = torch.randn(2 * 4 * 50 * 65)[1:-99][: 2 * 4 * 50 * 64 - 7]  # an odd offset
        odd = odd[: 2 * 2 * 49 * 64].view(2, 2, 49, 64)
        self.assertTrue(torch.equal(headwater.attention(q, odd, odd), headwater.attention(q, odd.clone(), odd.clone())))

    def test_out_of_any_layout(self):
        q, k, v = torch.randn(2, 4, 3, 64), torch.randn(2, 2, 50, 64), torch.randn(2, 2, 50, 32)
        want, want_lse = headwater.attention(q, k, v, return_lse=True)
        self.assertEqual(want_lse.shape, (2, 4, 3))
        for out in (torch.empty(2, 4, 3, 32), torch.empty(2, 3, 4, 32).transpose(1, 2), torch.empty(2, 4, 3, 40)[..., :32]):
            got = headwater.attention(q, k, v, out=out)
            self.assertEqual(got.data_ptr(), out.data_ptr())
            self.assertTrue(torch.equal(out, want))

    def test_causal_is_bottom_right(self):
        q, k, v = torch.randn(1, 2, 3, 64), torch.randn(1, 2, 7, 64), torch.randn(1, 2, 7, 64)
        mask = torch.ones(3, 7, dtype=torch.bool).tril(diagonal=4)
        want = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        torch.testing.assert_close(headwater.attention(q, k, v, is_causal=True), want, rtol=1e-4, atol=1e-5)
        window = mask & ~torch.ones(3, 7, dtype=torch.bool).tril(diagonal=1)
        want = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=window)
        torch.testing.assert_close(headwater.attention(q, k, v, is_causal=True, window_left=2), want, rtol=1e-4, atol=1e-5)
        shared = headwater.attention(q, k, is_causal=True, d_v=16)
        torch.testing.assert_close(shared, headwater.attention(q, k, k[..., :16], is_causal=True), rtol=1e-5, atol=1e-6)

    def test_softcap_and_16_bit(self):
        for dtype, tolerance in ((torch.bfloat16, 1e-2), (torch.float16, 2e-3)):
            q, k = torch.randn(1, 4, 2, 64).to(dtype), torch.randn(1, 1, 90, 64).to(dtype)
            got = headwater.attention(q, k, k, softcap=2.0)
            want, _ = attention(q.double().numpy(), k.double().numpy(), k.double().numpy(), 0.125, lambda i, j: True, softcap=2.0)
            self.assertEqual(got.dtype, dtype)
            assert_close(got.double().numpy(), want, tolerance)

    def test_merge_states(self):
        q, k, v = torch.randn(1, 4, 2, 64) * 9, torch.randn(1, 4, 90, 64) * 9, torch.randn(1, 4, 90, 32)
        flat = lambda pair: (pair[0][0].transpose(0, 1), pair[1][0].transpose(0, 1))  # noqa: E731
        whole, whole_lse = flat(headwater.attention(q, k, v, return_lse=True))
        a = flat(headwater.attention(q, k[:, :, :30], v[:, :, :30], return_lse=True))
        b = flat(headwater.attention(q, k[:, :, 30:], v[:, :, 30:], return_lse=True))
        out, lse = headwater.merge_states(*a, *b)
        self.assertGreater(whole_lse.abs().max(), 100)
        torch.testing.assert_close(out, whole, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(lse, whole_lse, rtol=1e-5, atol=1e-4)
        nothing = torch.full_like(a[1], float("-inf"))
        out, lse = headwater.merge_states(a[0], nothing, a[0], nothing)
        self.assertTrue(torch.all(out == 0) and torch.all(torch.isneginf(lse)))

    def test_append_and_gather_every_format(self):
        for name, entry in headwater.FORMATS.items():
            with self.subTest(format=name):
                width = entry.fixed_width or 128
                row, apart = entry.record_bytes(width)
                page = 4
                tail = 64 if entry.planar else 0  # room for planar scales
                dtype = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}.get(name, torch.uint8)
                cache = torch.zeros(3, page, 1, (row + tail) // dtype.itemsize, dtype=dtype)
                if name == "int8":
                    blocks = torch.zeros(3, page, 1, 1)
                else:
                    blocks = torch.zeros(3, page, 1, apart, dtype=torch.uint8) if apart else None
                source = headwater.Source(k=cache, format=name, width=width, value_width=width, k_block_scales=blocks, rule="full")
                rows = torch.randn(5, 1, width)
                slots = torch.tensor([7, 2, -1, 11, 0])
                headwater.append(source, rows, slots=slots)
                k, v = headwater.gather(source, slots[[0, 1, 3, 4]])
                error = (k - rows[[0, 1, 3, 4]]).norm() / rows[[0, 1, 3, 4]].norm()
                self.assertLess(error, 0.2 if "4" in name and "8" not in name.split("_")[0] else 0.06)
                self.assertTrue(torch.equal(k, v))

    def test_refusals(self):
        q, k, v = torch.randn(2, 4, 3, 64), torch.randn(2, 2, 50, 64), torch.randn(2, 2, 50, 64)
        f = headwater.attention
        for call, words in (
            (lambda: f(q, k.double(), v), "k.dtype = float64"),
            (lambda: f(q, k[:, :, :, :32], v), "k.shape"),
            (lambda: f(q, k, v, window_left=3), "window_left = 3"),
            (lambda: f(q, k, v, out=torch.empty(1)), "out.shape"),
            (lambda: f(q, k.numpy(), v), "k = ndarray"),
            (lambda: f(q.requires_grad_(), k, v), "requires_grad"),
            (lambda: f(q.detach(), k.transpose(2, 3).contiguous().transpose(2, 3), v), r"stride\(-1\)"),
            (lambda: f(q.detach(), k.to("meta"), v), "k.device = meta"),
            (lambda: f(q.detach(), k, v, scale=float("nan")), "sm_scale"),
            (lambda: OPS.attend(torch.zeros(1, 1, 8), [], [1, 2, 3], [], False), "descriptor"),
            (lambda: OPS.run(torch.zeros(1, 1, 8), [], [], [], [1], torch.zeros(4, dtype=torch.uint8), torch.zeros(4, dtype=torch.uint8), torch.zeros(1, 1, 8), None), "bounds"),
        ):
            with self.subTest(words=words), self.assertRaisesRegex(RuntimeError, words):
                call()

    def test_wrong_tables_are_refused_by_name(self):
        for change, words in (
            (lambda s: setattr(s, "block_table", s.block_table.long()), r"kv\[0\].block_table.dtype"),
            (lambda s: setattr(s, "seq_lens", s.seq_lens[:2]), r"kv\[0\].seq_lens.shape"),
            (lambda s: s.block_table.__setitem__((2, 1), 10**6), r"block_table\[2"),
            (lambda s: s.seq_lens.__setitem__(2, 10**6), "seq_lens"),
            (lambda s: setattr(s, "v", s.v[:1]), r"kv\[0\].v.shape"),
        ):
            p = paged_problem()
            change(p.sources[0])
            with self.assertRaisesRegex(RuntimeError, words):
                headwater.attend(p)

    def test_thread_count_of_torch_is_respected(self):
        p = paged_problem((3000, 2000, 1000), (1, 1, 1))
        before = torch.get_num_threads()
        outs = []
        try:
            for threads in (1, 2):
                torch.set_num_threads(threads)
                outs.append(headwater.attend(p))
        finally:
            torch.set_num_threads(before)
        assert_close(outs[0].numpy(), outs[1].double().numpy())

    def test_helpers(self):
        q = torch.zeros(1)
        self.assertTrue(torch.equal(arange(q, 3, 2), torch.tensor([0, 2, 4], dtype=torch.int32)))
        self.assertTrue(torch.equal(full(q, 2, 7), torch.tensor([7, 7], dtype=torch.int32)))


if __name__ == "__main__":
    unittest.main()
