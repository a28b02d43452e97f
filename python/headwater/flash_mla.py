"""DeepSeek's flash_mla package, served by this library. docs/flash_mla.md says what is the same and what differs.

Both generations of its interface: get_mla_metadata() returns a FlashMLASchedMeta; get_mla_metadata(cache_seqlens, ...) the older pair of
tensors that callers copy into buffers of their own. Neither is ever read: work is dealt from the real lengths of each call, so stale,
foreign or hand-written metadata cannot change a result. LSE is FlashMLA's: natural log, +inf for a row that sees nothing.
"""

import dataclasses
import importlib.util
import sys
from typing import Optional

import torch

from . import _native
from ._attention import arange, check_kind, check_shape
from ._calls import attend
from ._describe import Problem, Source

_BYTE_RECORDS = {656: "fp8_ds_656", 584: "fp8_ds_584", 352: "nvfp4_ds_352", 384: "nvfp4_ds_384", 432: "nvfp4_ds_432"}


@dataclasses.dataclass
class FlashMLASchedMeta:
    """Stands where FlashMLA keeps its schedule; holds nothing that a result depends on."""

    have_initialized: bool = False
    config: Optional[object] = None
    tile_scheduler_metadata: Optional[torch.Tensor] = None
    num_splits: Optional[torch.Tensor] = None


def get_mla_metadata(cache_seqlens=None, *args, **kwargs):
    """No argument: (FlashMLASchedMeta, None). With cache_seqlens [b]: the pair of int32 tensors, [parts, 8] and [b + 1]."""
    if cache_seqlens is None:
        return FlashMLASchedMeta(), None
    batch = cache_seqlens.shape[0]
    return torch.zeros(1, 8, dtype=torch.int32, device=cache_seqlens.device), arange(cache_seqlens, batch + 1)


def get_mla_metadata_dense_fp8(cache_seqlens, num_q_tokens_per_head_k=1, num_heads_k=1):
    return get_mla_metadata(cache_seqlens)


def _cache_source(name, cache, value_width, is_fp8, descale):
    """A page pool in the format that its last axis and type tell."""
    if cache.dim() != 4:
        raise _native.Error(f"headwater: {name}.shape = {list(cache.shape)}: must be (num_blocks, page_block_size, num_heads_k, head_dim)")
    record = cache.shape[-1] * cache.element_size()
    if cache.element_size() == 1 and record in _BYTE_RECORDS:
        return Source(k=cache, format=_BYTE_RECORDS[record], value_width=value_width)
    if cache.element_size() == 1:
        if cache.dtype not in (torch.float8_e4m3fn, torch.uint8):
            raise _native.Error(f"headwater: {name}.dtype = {cache.dtype}: must be bfloat16, float16, float8_e4m3fn or uint8")
        return Source(k=cache, format="e4m3", k_scale=descale, value_width=value_width)
    if is_fp8:
        raise _native.Error(f"headwater: is_fp8_kvcache = True: {name}.dtype = {cache.dtype} holds no fp8")
    return Source(k=cache, value_width=value_width)


def _token_lens(lens, tokens):
    """[b] as one value a query token."""
    return None if lens is None else lens.repeat_interleave(tokens)


def flash_mla_with_kvcache(
    q, k_cache, block_table, cache_seqlens, head_dim_v, tile_scheduler_metadata=None, num_splits=None, softmax_scale=None, causal=False,
    is_fp8_kvcache=False, indices=None, attn_sink=None, extra_k_cache=None, extra_indices_in_kvcache=None, topk_length=None,
    extra_topk_length=None, *, descale_q=None, descale_k=None, out=None,
):  # fmt: skip
    """(out [b, s_q, h_q, head_dim_v], lse [b, h_q, s_q]): dense over block_table and cache_seqlens, or sparse over indices [b, s_q, topk]."""
    check_kind(q, k_cache=k_cache, attn_sink=attn_sink, indices=indices, extra_k_cache=extra_k_cache, extra_indices_in_kvcache=extra_indices_in_kvcache)
    if q.dim() != 4:
        raise _native.Error(f"headwater: q.shape = {list(q.shape)}: must be (batch, seq_len_q, num_heads_q, head_dim)")
    b, tokens, heads, width = q.shape
    if (extra_k_cache is None) != (extra_indices_in_kvcache is None):
        raise _native.Error("headwater: extra_k_cache, extra_indices_in_kvcache: must be given both or not at all")
    source = _cache_source("k_cache", k_cache, head_dim_v, is_fp8_kvcache, descale_k)
    sources = [source]
    if indices is None:
        for name, value in (("topk_length", topk_length), ("extra_k_cache", extra_k_cache), ("extra_topk_length", extra_topk_length)):
            if value is not None:
                raise _native.Error(f"headwater: {name}: must be None without indices")
        if block_table is None or cache_seqlens is None:
            raise _native.Error("headwater: block_table, cache_seqlens: must be given without indices")
        source.block_table, source.seq_lens, source.rule = block_table, cache_seqlens, "causal" if causal else "full"
    else:
        if causal:
            raise _native.Error("headwater: causal = True: must be False with indices, which alone decide what is seen")
        _gathered(source, "indices", indices, topk_length, (b, tokens, None))
        if extra_k_cache is not None:
            extra = _cache_source("extra_k_cache", extra_k_cache, head_dim_v, is_fp8_kvcache, descale_k)
            _gathered(extra, "extra_indices_in_kvcache", extra_indices_in_kvcache, extra_topk_length, (b, tokens, None))
            sources.append(extra)
    q_scale = None if descale_q is None else descale_q.reshape(-1)
    problem = Problem(
        q=q.reshape(b * tokens, heads, width), sources=sources, qo_indptr=arange(q, b + 1, tokens),
        scale=width**-0.5 if softmax_scale is None else softmax_scale, sinks=attn_sink, q_scale=q_scale,
    )  # fmt: skip
    rows = None
    if out is not None:
        check_shape("out", out, (b, tokens, heads, head_dim_v))
        rows = out.view(b * tokens, heads, head_dim_v)
    rows, lse = attend(problem, return_lse=True, out=rows)
    if isinstance(tile_scheduler_metadata, FlashMLASchedMeta):
        tile_scheduler_metadata.have_initialized = True
    lse = _edge_lse(lse).view(b, tokens, heads).transpose(1, 2).contiguous()
    return rows.view(b, tokens, heads, head_dim_v) if out is None else out, lse


def flash_mla_with_kvcache_fp8(
    q, k_cache, block_table, cache_seqlens, head_dim_v, tile_scheduler_metadata=None, num_splits=None, softmax_scale=None, causal=False,
    descale_q=None, descale_k=None,
):  # fmt: skip
    """vLLM's dense fp8 variant: q and k_cache in e4m3, one float32 factor each."""
    return flash_mla_with_kvcache(
        q, k_cache, block_table, cache_seqlens, head_dim_v, tile_scheduler_metadata, num_splits, softmax_scale, causal, descale_q=descale_q, descale_k=descale_k
    )


def flash_mla_sparse_fwd(q, kv, indices, sm_scale, d_v=512, attn_sink=None, topk_length=None, indexer_topk=0):
    """(out [s_q, h_q, d_v], max_logits [s_q, h_q], lse [s_q, h_q]); with indexer_topk > 0 also the lse over the first indexer_topk entries.

    q [s_q, h_q, d_qk], kv [s_kv, 1, d_qk], indices [s_q, 1, topk] int32; negative or >= s_kv = none. max_logits is computed beside the
    attention call, by torch: callers that drop it pay for it all the same.
    """
    check_kind(q, kv=kv, indices=indices, attn_sink=attn_sink, topk_length=topk_length)
    if q.dim() != 3 or kv.dim() != 3:
        raise _native.Error(f"headwater: q.shape, kv.shape = {list(q.shape)}, {list(kv.shape)}: must be [s_q, h_q, d_qk] and [s_kv, h_kv, d_qk]")
    check_shape("kv", kv, (None, 1, q.shape[2]))
    check_shape("indices", indices, (q.shape[0], 1, None))
    rows = indices[:, 0]

    def over(index_rows, sinks):
        source = Source(k=kv, value_width=d_v, rule="gathered", indices=index_rows, topk_lens=topk_length)
        one = torch.tensor([0, q.shape[0]], dtype=torch.int32, device=q.device)
        return attend(Problem(q=q, sources=[source], qo_indptr=one, scale=sm_scale, sinks=sinks), return_lse=True)

    out, lse = over(rows, attn_sink)
    result = (out, _max_logits(q, kv[:, 0], rows, sm_scale, topk_length), _edge_lse(lse))
    if indexer_topk > 0:
        result += (_edge_lse(over(rows[:, :indexer_topk].contiguous(), None)[1]),)
    return result


def _gathered(source, name, indices, lens, shape):
    check_shape(name, indices, shape)
    source.rule, source.indices = "gathered", indices.reshape(-1, indices.shape[-1])
    source.topk_lens = _token_lens(lens, indices.shape[1])


def _edge_lse(lse):
    """-inf (nothing seen) as FlashMLA's +inf."""
    return torch.where(torch.isneginf(lse), torch.full_like(lse, float("inf")), lse)


def _max_logits(q, kv, indices, scale, lens, chunk_elements=1 << 24):
    """Largest scaled score of each row, -inf where none; by chunks of rows, never a NaN from an entry that is not selected."""
    topk = indices.shape[1]
    valid = (indices >= 0) & (indices < kv.shape[0])
    if lens is not None:
        valid &= torch.arange(topk, device=q.device) < lens[:, None]
    result = q.new_full(q.shape[:2], float("-inf"), dtype=torch.float32)
    if topk == 0 or kv.shape[0] == 0:
        return result
    step = max(1, chunk_elements // max(1, topk * kv.shape[1]))
    for begin in range(0, q.shape[0], step):
        at = slice(begin, begin + step)
        keys = kv[torch.where(valid[at], indices[at], 0).long()].float()
        scores = torch.einsum("thd,tkd->thk", q[at].float(), keys) * scale
        result[at] = torch.where(valid[at][:, None], scores, float("-inf")).amax(-1)
    return result


_NAMES = ("FlashMLASchedMeta", "get_mla_metadata", "get_mla_metadata_dense_fp8", "flash_mla_with_kvcache", "flash_mla_with_kvcache_fp8", "flash_mla_sparse_fwd")
_VLLM = "vllm.v1.attention.ops.flashmla"


def _is_supported():
    return True, None


def install():
    """Puts this module in place of flash_mla: for `import flash_mla` (SGLang) and in vLLM's own copy, names that other modules have
    bound already included. Returns a function that puts everything back."""
    ours = sys.modules[__name__]
    undo = []

    def set_module(name):
        undo.append((sys.modules, name, sys.modules.get(name)))
        sys.modules[name] = ours

    def rebind(module, attribute, value):
        undo.append((module, attribute, getattr(module, attribute, None)))
        setattr(module, attribute, value)

    replaced = {}
    for name in ("flash_mla", "flash_mla.flash_mla_interface"):
        known = sys.modules.get(name)
        for attribute in _NAMES:
            if known is not None and known is not ours and hasattr(known, attribute):
                replaced[id(getattr(known, attribute))] = getattr(ours, attribute)
        set_module(name)
    if _VLLM in sys.modules or ("vllm" in sys.modules and importlib.util.find_spec(_VLLM) is not None):
        vllm = importlib.import_module(_VLLM)
        for attribute in _NAMES:
            if hasattr(vllm, attribute):
                replaced[id(getattr(vllm, attribute))] = getattr(ours, attribute)
                rebind(vllm, attribute, getattr(ours, attribute))
        for attribute in ("is_flashmla_dense_supported", "is_flashmla_sparse_supported"):
            if hasattr(vllm, attribute):
                replaced[id(getattr(vllm, attribute))] = _is_supported
                rebind(vllm, attribute, _is_supported)
    for module in list(sys.modules.values()):
        if module is None or module is ours or not getattr(module, "__name__", "").startswith(("vllm", "sglang")):
            continue
        for attribute, value in list(vars(module).items()):
            if id(value) in replaced and value is not replaced[id(value)]:
                rebind(module, attribute, replaced[id(value)])

    def uninstall():
        for holder, name, old in reversed(undo):
            if holder is sys.modules:
                if old is None:
                    sys.modules.pop(name, None)
                else:
                    sys.modules[name] = old
            elif old is None:
                delattr(holder, name)
            else:
                setattr(holder, name, old)

    return uninstall
