"""headwater.compare: what a KV format costs a model on a text, measured with the format's real bytes in the cache."""

import math

import torch

from . import _native

FORMATS = ("f32", "bf16", "e4m3", "q8_0", "mxfp4", "nvfp4", ("e4m3", "mxfp4"))


def compare(model, ids, *, formats=FORMATS, recent=0, context=1024, prefill=None, samples=1000, seed=0):
    """One row a format: KL divergence from the same model with an f32 cache (mean and p99, nats a token), top-1 agreement, perplexity with a
    95 % interval, and bytes of KV a token over all layers.

    ids [tokens]: a text, cut into sequences of `context` tokens. In each, the first `prefill` tokens (default half) fill the cache in one
    pass and the rest follow in steps of 64, so that every later token reads stored bytes. formats: names, or (k, v) pairs. The
    interval comes from resampling whole sequences where there are several, otherwise blocks of 64 tokens.
    """
    from . import hf

    ids = torch.as_tensor(ids).reshape(-1)
    if len(ids) < 16:
        raise _native.Error(f"headwater: ids = {len(ids)} tokens: must be at least 16")
    hf.register()
    config = model.config.get_text_config()
    before = config._attn_implementation
    config._attn_implementation = hf.NAME
    sequences = [part for part in ids.split(context) if len(part) >= 16]
    try:
        with torch.no_grad():
            base = [_logprobs(model, part, hf.KvCache("f32"), prefill) for part in sequences]
            return [_row(model, entry, sequences, base, recent, prefill, samples, seed) for entry in formats]
    finally:
        config._attn_implementation = before


def _logprobs(model, ids, cache, prefill):
    """Log probabilities [tokens, vocab] of a sequence read in steps, and the cache's bytes."""
    first = len(ids) // 2 if prefill is None else min(prefill, len(ids))
    parts = [ids[:first], *ids[first:].split(64)]
    logits = [model(part[None], past_key_values=cache, use_cache=True).logits[0].float() for part in parts if len(part)]
    return torch.cat(logits).log_softmax(-1), cache.bytes()


def _row(model, entry, sequences, base, recent, prefill, samples, seed):
    from . import hf

    k_format, v_format = (entry, entry) if isinstance(entry, str) else entry
    divergences, agree, losses, size, tokens = [], [], [], 0, 0
    for ids, (want, _) in zip(sequences, base):
        got, used = _logprobs(model, ids, hf.KvCache(k_format, v_format, recent=recent), prefill)
        divergences.append((want.exp() * (want - got)).sum(-1))
        agree.append(want.argmax(-1) == got.argmax(-1))
        losses.append(-got[:-1].gather(-1, ids[1:, None])[:, 0])
        size += used
        tokens += len(ids)
    divergence = torch.cat(divergences).clamp(min=0)
    low, high = _interval(losses, samples, seed)
    return {
        "k_format": k_format,
        "v_format": v_format,
        "recent": recent,
        "kl_mean": divergence.mean().item(),
        "kl_p99": divergence.quantile(0.99).item(),
        "top1": torch.cat(agree).float().mean().item(),
        "perplexity": math.exp(torch.cat(losses).mean().item()),
        "perplexity_95": (low, high),
        "bytes_per_token": size / tokens,
        "tokens": tokens,
    }


def _interval(losses, samples, seed):
    blocks = losses if len(losses) >= 8 else [block for loss in losses for block in loss.split(64)]
    sums, counts = torch.tensor([b.sum() for b in blocks]), torch.tensor([float(len(b)) for b in blocks])
    pick = torch.randint(len(blocks), (samples, len(blocks)), generator=torch.Generator().manual_seed(seed))
    means = (sums[pick].sum(-1) / counts[pick].sum(-1)).exp()
    return means.quantile(0.025).item(), means.quantile(0.975).item()


def table(rows):
    """The rows as aligned text."""
    lines = [f"{'K / V':<16}{'bytes/token':>12}{'KL mean':>11}{'KL p99':>11}{'top-1':>9}{'perplexity':>12}   95 %"]
    for r in rows:
        name = r["k_format"] if r["k_format"] == r["v_format"] else f"{r['k_format']} / {r['v_format']}"
        low, high = r["perplexity_95"]
        lines.append(
            f"{name:<16}{r['bytes_per_token']:>12.0f}{r['kl_mean']:>11.2e}{r['kl_p99']:>11.2e}{r['top1']:>9.2%}{r['perplexity']:>12.3f}   {low:.3f} .. {high:.3f}"
        )
    return "\n".join(lines)


compare.table = table
