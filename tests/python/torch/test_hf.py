"""Transformers: tiny random models against their own eager attention, and the cache that holds bytes."""

import copy
import unittest

import torch
import transformers

import headwater
from headwater import hf

hf.register()
torch.set_grad_enabled(False)
torch.set_num_threads(1)  # tiny tensors: threads that wait for each other cost more than they bring
SMALL = dict(vocab_size=97, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, max_position_embeddings=512)


def config_of(name):
    heads = dict(num_key_value_heads=2, head_dim=16)
    if name == "llama":
        return transformers.LlamaConfig(**SMALL, num_key_value_heads=2)
    if name == "qwen3":
        return transformers.Qwen3Config(**SMALL, **heads)
    if name == "mistral":
        return transformers.MistralConfig(**SMALL, num_key_value_heads=2, sliding_window=6)
    if name == "gpt_oss":
        return transformers.GptOssConfig(**SMALL, **heads, sliding_window=6, num_local_experts=4, num_experts_per_tok=2, layer_types=["sliding_attention", "full_attention"])
    if name == "gemma2":
        return transformers.Gemma2Config(**SMALL, **heads, sliding_window=6, attn_logit_softcapping=5.0)
    if name == "deepseek_v3":
        return transformers.DeepseekV3Config(
            **{**SMALL, "num_hidden_layers": 2}, num_key_value_heads=4, kv_lora_rank=32, q_lora_rank=24, qk_rope_head_dim=8, qk_nope_head_dim=16,
            v_head_dim=12, n_routed_experts=4, num_experts_per_tok=2, n_group=1, topk_group=1, moe_intermediate_size=32, first_k_dense_replace=1,
        )  # fmt: skip
    if name == "deepseek_v4":
        small = {**SMALL, "num_hidden_layers": 4}
        del small["intermediate_size"]
        kinds = ["sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention", "compressed_sparse_attention"]
        return transformers.DeepseekV4Config(
            **small, moe_intermediate_size=32, head_dim=32, q_lora_rank=24, num_experts_per_tok=2, n_routed_experts=4, layer_types=kinds,
            compress_rates={"compressed_sparse_attention": 4, "heavily_compressed_attention": 8}, hc_mult=2, mlp_layer_types=["moe"] * 4,
            sliding_window=6, o_groups=2, o_lora_rank=16, index_n_heads=2, index_head_dim=16, index_topk=4, partial_rotary_factor=0.25,
        )  # fmt: skip
    raise KeyError(name)


def models(name):
    torch.manual_seed(0)
    config = config_of(name)
    eager = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    ours = transformers.AutoModelForCausalLM.from_config(copy.deepcopy(config), attn_implementation="headwater").eval()
    ours.load_state_dict(eager.state_dict())
    if name in ("gpt_oss", "deepseek_v4"):  # sinks of size, all different
        for model in (eager, ours):
            for layer in model.model.layers:
                layer.self_attn.sinks.data = torch.linspace(-1, 4, 4)
    return eager, ours


def argmax_agrees(test, a, b, where=None):
    """The same choice wherever eager's top two differ by more than the two models' logits do."""
    top = a.topk(2, -1).values
    clear = (top[..., 0] - top[..., 1]) > 1e-4
    if where is not None:
        clear &= where
    skipped = 1 - clear.float().mean().item() if where is None else 1 - (clear.sum() / where.sum()).item()
    test.assertLessEqual(skipped, 0.02, f"{skipped:.1%} of the positions are ties")
    test.assertTrue(torch.equal(a.argmax(-1)[clear], b.argmax(-1)[clear]))


NAMES = ("llama", "qwen3", "mistral", "gpt_oss", "gemma2", "deepseek_v3", "deepseek_v4")


class Models(unittest.TestCase):
    def test_prefill_and_decode(self):
        for name in NAMES:
            with self.subTest(model=name):
                eager, ours = models(name)
                ids = torch.randint(0, 97, (2, 21))
                want, got = eager(ids, use_cache=True), ours(ids, use_cache=True)
                torch.testing.assert_close(got.logits, want.logits, rtol=1e-4, atol=1e-5)
                argmax_agrees(self, want.logits, got.logits)
                a, b = want.past_key_values, got.past_key_values
                for _ in range(3):  # teacher-forced along eager's tokens, three at a time once
                    token = torch.randint(0, 97, (2, 1 if _ else 3))
                    want, got = eager(token, past_key_values=a, use_cache=True), ours(token, past_key_values=b, use_cache=True)
                    torch.testing.assert_close(got.logits, want.logits, rtol=1e-4, atol=1e-5)

    def test_left_padding(self):
        for name in NAMES:
            with self.subTest(model=name):
                eager, ours = models(name)
                ids = torch.randint(0, 97, (3, 17))
                mask = torch.ones(3, 17, dtype=torch.long)
                mask[0, :5] = 0
                mask[2, :16] = 0
                want, got = eager(ids, attention_mask=mask).logits, ours(ids, attention_mask=mask).logits
                real = mask.bool()
                torch.testing.assert_close(got[real], want[real], rtol=1e-4, atol=1e-5)
                self.assertTrue(torch.isfinite(got).all())

    def test_generate(self):
        eager, ours = models("gpt_oss")
        ids = torch.randint(0, 97, (2, 9))
        mask = torch.ones_like(ids)
        mask[1, :3] = 0
        args = dict(attention_mask=mask, max_new_tokens=12, do_sample=False, pad_token_id=0, eos_token_id=96)
        self.assertTrue(torch.equal(eager.generate(ids, **args), ours.generate(ids, **args)))

    def test_any_mask_becomes_lists(self):
        eager, ours = models("llama")
        ids = torch.randint(0, 97, (2, 12))
        shown = torch.rand(2, 1, 12, 12) < 0.5
        shown |= torch.eye(12, dtype=torch.bool)
        mask = torch.zeros(2, 1, 12, 12).masked_fill(~shown, torch.finfo(torch.float32).min)
        torch.testing.assert_close(ours(ids, attention_mask=mask).logits, eager(ids, attention_mask=mask).logits, rtol=1e-4, atol=1e-5)
        with self.assertRaisesRegex(RuntimeError, "bias"):
            ours(ids, attention_mask=mask.clamp(min=-3.0))

    def test_refusals(self):
        _, ours = models("llama")
        attention = ours.model.layers[0].self_attn
        q = torch.zeros(1, 4, 2, 16)
        for arguments, words in (({"dropout": 0.1}, "dropout"), ({"position_bias": q}, "position_bias")):
            with self.assertRaisesRegex(RuntimeError, words):
                hf.attention_forward(attention, q, q, q, None, **arguments)
        with torch.enable_grad(), self.assertRaisesRegex(RuntimeError, "requires_grad"):
            ours(torch.zeros(1, 3, dtype=torch.long))


class Bytes(unittest.TestCase):
    def test_f32_bytes_change_nothing(self):
        for name in ("llama", "gpt_oss", "gemma2"):
            for recent in (0, 4):
                with self.subTest(model=name, recent=recent):
                    eager, ours = models(name)
                    ids = torch.randint(0, 97, (2, 21))
                    cache = hf.KvCache("f32", recent=recent)
                    want = eager(ids).logits
                    got = torch.cat([ours(part, past_key_values=cache).logits for part in ids.split([13, 1, 1, 3, 3], 1)], 1)
                    torch.testing.assert_close(got, want, rtol=1e-4 if not recent else 0.1, atol=1e-5 if not recent else 0.02)

    def test_bytes_are_what_the_kernel_reads(self):
        for k_format, v_format in (("bf16", "bf16"), ("e4m3", "e4m3"), ("q8_0", "q8_0"), ("mxfp4", "mxfp4"), ("e4m3", "mxfp4"), ("int8", "nvfp4")):
            for recent in (0, 4):
                with self.subTest(k=k_format, v=v_format, recent=recent):
                    torch.manual_seed(0)
                    config = transformers.LlamaConfig(**{**SMALL, "hidden_size": 128}, num_key_value_heads=2)
                    ours = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="headwater").eval()
                    ids = torch.randint(0, 97, (2, 21))
                    stored, decoded = hf.KvCache(k_format, v_format, recent=recent), hf.KvCache(k_format, v_format, recent=recent, decode=True)
                    for part in ids.split([13, 1, 1, 3, 3], 1):
                        a, b = ours(part, past_key_values=stored).logits, ours(part, past_key_values=decoded).logits
                        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)
                    heads, width, kept = 2, 32, 21 - recent
                    row = sum(sum(headwater.FORMATS[f].record_bytes(width)) for f in (k_format, v_format))
                    self.assertEqual(stored.bytes(), 2 * 2 * heads * (kept * row + recent * 2 * 2 * width))

    def test_padding_and_planar_formats_are_refused(self):
        _, ours = models("llama")
        ids, mask = torch.randint(0, 97, (2, 6)), torch.ones(2, 6, dtype=torch.long)
        mask[0, :2] = 0
        with self.assertRaisesRegex(RuntimeError, "padding"):
            ours(ids, attention_mask=mask, past_key_values=hf.KvCache("f32"))
        with self.assertRaisesRegex(RuntimeError, "nonsense"):
            hf.KvCache("nonsense")
        with self.assertRaisesRegex(RuntimeError, "fp8_ds_584"):
            ours(ids, past_key_values=hf.KvCache("fp8_ds_584"))


if __name__ == "__main__":
    unittest.main()
