"""A Llama forward pass in numpy that hands out q, k, v after rotary embedding, from a GGUF file.

Weights are dequantised to float32 by the gguf package. GGUF stores the rows of attn_q and attn_k permuted so that rotary pairs stand side
by side; they are put back here, so that q and k have the column order that PyTorch models and their engines hold: rotary pairs
(i, i + d/2). Scores do not depend on that order, block scales of 16 or 32 columns do.
"""

import numpy as np
from gguf import GGUFReader
from gguf.quants import dequantize
from tokenizers import Tokenizer, models, pre_tokenizers


class Gguf:
    def __init__(self, path):
        reader = GGUFReader(path)
        self.fields = reader.fields
        self.tensors = {t.name: t for t in reader.tensors}

    def __getitem__(self, key):
        return self.fields[key].contents()

    def weight(self, name):  # [out, in] float32
        tensor = self.tensors[name]
        return np.ascontiguousarray(dequantize(tensor.data, tensor.tensor_type), dtype=np.float32)

    def types(self):
        return sorted({t.tensor_type.name for t in self.tensors.values()})


def tokenizer_of(gguf):
    """Byte-level BPE with single digits (GGUF's pre-tokenizer "smollm"), from the file's own vocabulary and merges."""
    if gguf["tokenizer.ggml.pre"] != "smollm":
        raise SystemExit(f"tokenizer.ggml.pre = {gguf['tokenizer.ggml.pre']}: only smollm is known here")
    vocab = {token: i for i, token in enumerate(gguf["tokenizer.ggml.tokens"])}
    merges = [tuple(merge.split(" ")) for merge in gguf["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    return tokenizer


def rms_norm(x, weight, eps):
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps) * weight


class Llama:
    def __init__(self, gguf):
        self.gguf = gguf
        self.layers = gguf["llama.block_count"]
        self.hidden = gguf["llama.embedding_length"]
        self.heads = gguf["llama.attention.head_count"]
        self.kv_heads = gguf["llama.attention.head_count_kv"]
        self.d = gguf["llama.rope.dimension_count"]
        self.eps = gguf["llama.attention.layer_norm_rms_epsilon"]
        self.theta = gguf["llama.rope.freq_base"]
        self.embedding = gguf.weight("token_embd.weight")  # [vocab, hidden]; also the output matrix

    def unpermuted(self, name, heads):
        w = self.gguf.weight(name)  # rows ordered [head, pair, 2]
        return w.reshape(heads, self.d // 2, 2, -1).swapaxes(1, 2).reshape(w.shape)  # [head, half, pair]

    def rope(self, x):  # [tokens, heads, d]
        half = self.d // 2
        frequency = self.theta ** (-np.arange(half, dtype=np.float64) / half)
        angle = np.arange(len(x))[:, None] * frequency  # [tokens, half]
        cos = np.cos(angle).astype(np.float32)[:, None, :]
        sin = np.sin(angle).astype(np.float32)[:, None, :]
        a, b = x[..., :half], x[..., half:]
        return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)

    def attention(self, q, k, v):  # causal; [tokens, heads, d] -> [tokens, heads * d]
        tokens = len(q)
        hidden = np.triu(np.full((tokens, tokens), -np.inf, dtype=np.float32), 1)
        out = np.empty_like(q)
        for h in range(self.heads):
            g = h * self.kv_heads // self.heads
            z = q[:, h] @ k[:, g].T * np.float32(self.d**-0.5) + hidden
            p = np.exp(z - z.max(axis=-1, keepdims=True))
            out[:, h] = p @ v[:, g] / p.sum(axis=-1, keepdims=True)
        return out.reshape(tokens, -1)

    def forward(self, ids, capture):
        """Returns logits [tokens, vocab] and {layer: (q, k, v)} for the layers in `capture`."""
        x = self.embedding[np.asarray(ids)]
        captured = {}
        for n in range(self.layers):
            weight = lambda name, n=n: self.gguf.weight(f"blk.{n}.{name}.weight")  # noqa: E731
            y = rms_norm(x, weight("attn_norm"), self.eps)
            q = self.rope((y @ self.unpermuted(f"blk.{n}.attn_q.weight", self.heads).T).reshape(len(x), self.heads, self.d))
            k = self.rope((y @ self.unpermuted(f"blk.{n}.attn_k.weight", self.kv_heads).T).reshape(len(x), self.kv_heads, self.d))
            v = (y @ weight("attn_v").T).reshape(len(x), self.kv_heads, self.d)
            if n in capture:
                captured[n] = (q, k, v)
            x = x + self.attention(q, k, v) @ weight("attn_output").T
            y = rms_norm(x, weight("ffn_norm"), self.eps)
            gate, up = y @ weight("ffn_gate").T, y @ weight("ffn_up").T
            x = x + (gate / (1 + np.exp(-gate)) * up) @ weight("ffn_down").T
        return rms_norm(x, self.gguf.weight("output_norm.weight"), self.eps) @ self.embedding.T, captured


def mean_nll(logits, ids):
    """Mean negative log-likelihood in nats of ids[1:] given what stands before."""
    z = logits[:-1].astype(np.float64)
    z -= z.max(axis=-1, keepdims=True)
    target = z[np.arange(len(z)), np.asarray(ids)[1:]]
    return float(np.mean(np.log(np.exp(z).sum(axis=-1)) - target))
