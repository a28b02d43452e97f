"""Transformers: an attention implementation and a cache that holds the real bytes. docs/transformers.md.

    headwater.hf.register()
    model = AutoModelForCausalLM.from_pretrained(name, attn_implementation="headwater")
    model(ids, past_key_values=headwater.hf.KvCache(k_format="q8_0", v_format="q8_0"))
"""

import dataclasses
from typing import Optional

import torch
from transformers.cache_utils import Cache, CacheLayerMixin

from . import _native
from ._attention import _dense_source, arange, full, token_rows
from ._calls import append, attend, gather
from ._describe import Problem, Source

NAME = "headwater"
# Arguments that models pass along and that change nothing here.
_HARMLESS = {
    "cache_position", "position_ids", "use_cache", "output_attentions", "output_hidden_states", "return_dict", "num_items_in_batch",
    "layer_idx", "past_key_values", "output_router_logits", "logits_to_keep", "cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k",
}  # fmt: skip


def register(name=NAME):
    """Makes `attn_implementation="headwater"` known, its mask function too (without one Transformers would pass no mask at all)."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import eager_mask

    # The additive mask, never skipped: models that concatenate further entries (DeepSeek-V4) extend a mask, and lose theirs without one.
    AttentionInterface.register(name, attention_forward)
    AttentionMaskInterface.register(name, eager_mask)


@dataclasses.dataclass
class _Visible:
    """What a boolean mask (b, 1, T, N) shows: intervals that end one entry later with each query, or anything (lists)."""

    lens: Optional[torch.Tensor] = None  # [b] entries up to the last query's own; None: all N
    starts: Optional[torch.Tensor] = None  # [b] first entry that is not padding; None: 0
    window: Optional[int] = None  # entries that a query sees, its own included
    causal: bool = True
    lists: Optional[torch.Tensor] = None  # [b, T, k] positions, -1 = none


def _visible_of(mask, t, n, hint):
    """Reads a mask; raises where heads differ or values are no mask. hint: the layer's window, which tells a window from padding."""
    if mask.dim() != 4 or mask.shape[1] != 1:
        raise _native.Error(f"headwater: attention_mask.shape = {list(mask.shape)}: must be (batch, 1, queries, keys)")
    if mask.shape[-2] != t or mask.shape[-1] < n:
        raise _native.Error(f"headwater: attention_mask.shape = {list(mask.shape)}: must be (batch, 1, {t}, {n})")
    mask = mask[:, 0, :, :n]
    if mask.dtype != torch.bool:
        shown = mask == 0
        if not torch.all(shown | (mask <= torch.finfo(mask.dtype).min / 2)):
            raise _native.Error("headwater: attention_mask holds a bias: only masks are supported, by 0 and the type's lowest value")
        mask = shown
    at = torch.arange(n, device=mask.device)
    any_seen = mask.any(-1)
    first = torch.where(any_seen, mask.int().argmax(-1), n)
    last = torch.where(any_seen, n - 1 - mask.flip(-1).int().argmax(-1), -1)
    # The last entry of query i is that of the last query less t - 1 - i.
    lens = last[:, -1] + 1
    own = lens[:, None] - t + torch.arange(t, device=mask.device)
    if hint:
        window = hint
        limited = any_seen & (first == own - hint + 1)
        starts = torch.where(limited, n, first).amin(-1)
        starts = torch.where(starts == n, 0, starts)
    else:
        starts = first.amin(-1)
        windows = torch.where(any_seen & (first > starts[:, None]), own - first + 1, -1)
        window = int(windows.max())
    expect = (at <= own[..., None]) & (at >= starts[:, None, None])
    if window > 0:
        expect &= at > own[..., None] - window
    if torch.equal(expect, mask):
        return _Visible(None if torch.all(lens == n) else lens.int(), None if torch.all(starts == 0) else starts.int(), window if window > 0 else None)
    whole = mask.all(1)
    if torch.equal(mask, whole[:, None].expand_as(mask)) and torch.equal(mask[:, 0], (at < lens[:, None]) & (at >= starts[:, None])):
        return _Visible(lens.int(), None if torch.all(starts == 0) else starts.int(), None, causal=False)
    counts = mask.sum(-1)
    k = max(1, int(counts.max()))
    order = torch.where(mask, at, n).sort(-1).values[..., :k]
    return _Visible(lists=torch.where(order < n, order, -1).int())


def _visible_once(mask, t, n, hint):
    """All layers of a kind share one mask object: read with the first."""
    known = getattr(mask, "_headwater_visible", None)
    if known is None or known[0] != (t, n, hint):
        known = ((t, n, hint), _visible_of(mask, t, n, hint))
        mask._headwater_visible = known
    return known[1]


def _by_rows(a, starts):
    """K or V (b, h, N, d) of requests that start at different rows, without a copy: pages of one row each and a table of them."""
    b, h, n, d = a.shape
    sb, sh, sn, sd = a.stride()
    if sn == 0 or sb % sn:
        raise _native.Error(f"headwater: stride(0) = {sb}: must be a multiple of stride(2) = {sn} where requests are padded")
    pages = a.as_strided(((b - 1) * (sb // sn) + n, 1, h, d), (sn, sn, sh, sd))
    table = torch.arange(b, device=a.device)[:, None] * (sb // sn) + starts[:, None] + torch.arange(n, device=a.device)
    return pages, table.int().contiguous()


def _tensor_sources(key, value, seen, rule, window_left):
    b, _, n, _ = key.shape
    if seen is not None and seen.lists is not None:
        source = _dense_source(key, value, value.shape[-1], "gathered", -1)
        source.indices, source.index_space = seen.lists.reshape(-1, seen.lists.shape[-1]), "position"
        return [source]
    if seen is not None and seen.starts is not None:
        pages, table = _by_rows(key, seen.starts)
        v_pages, v_table = _by_rows(value, seen.starts)
        if not torch.equal(table, v_table):  # K and V of different strides: one table cannot serve both
            return _tensor_sources(key.contiguous(), value.contiguous(), seen, rule, window_left)
        lens = (full(key, b, n) if seen.lens is None else seen.lens) - seen.starts
        return [Source(k=pages, v=v_pages, block_table=table, seq_lens=lens, rule=rule, window_left=window_left)]
    source = _dense_source(key, value, value.shape[-1], rule, window_left)
    if seen is not None and seen.lens is not None:
        source.seq_lens = seen.lens
    return [source]


def attention_forward(
    module, query, key, value, attention_mask, scaling=None, dropout=0.0, sliding_window=None, softcap=None, is_causal=None, s_aux=None, **kwargs
):
    """Transformers' attention interface: (out (b, T, h, d_v), None). What cannot be honoured is refused by name."""
    for name, argument in kwargs.items():
        if argument is not None and argument is not False and name not in _HARMLESS:
            raise _native.Error(f"headwater: {name} = {type(argument).__name__}: not an argument that this attention honours")
    if dropout:
        raise _native.Error(f"headwater: dropout = {dropout}: must be 0")
    layer = getattr(key, "_headwater_layer", None)
    b, heads, t, width = query.shape
    n = key.shape[2]
    is_causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    seen = None if attention_mask is None or n == 0 else _visible_once(attention_mask, t, n, sliding_window)
    if seen is None:
        window = sliding_window if is_causal else None
        causal = is_causal
    else:
        window, causal = seen.window, seen.causal
    rule = "full" if not causal else ("window" if window else "causal")
    window_left = window - 1 if causal and window else -1
    sinks = None if s_aux is None else s_aux.detach().float()
    if layer is not None:
        sources, context = layer.sources(seen, rule, window_left)
    else:
        if torch.is_grad_enabled() and (query.requires_grad or key.requires_grad):
            raise _native.Error("headwater: query.requires_grad = True: must be False, there is no backward pass; use torch.no_grad()")
        sources, context = _tensor_sources(key, value, seen, rule, window_left), None
    problem = Problem(
        q=token_rows(query.detach()), sources=sources, qo_indptr=arange(query, b + 1, t), scale=width**-0.5 if scaling is None else scaling,
        sinks=sinks, softcap=softcap or 0.0, context_lens=context,
    )  # fmt: skip
    out = attend(problem)
    return out.view(b, t, heads, -1), None


class _Store:
    """Records [b, capacity, heads, record] of one format, grown by doubling."""

    def __init__(self, fmt, width, heads, batch):
        self.format, self.width, self.heads, self.batch, self.length = _native.format_of(fmt), width, heads, batch, 0
        if self.format.planar:
            raise _native.Error(f"headwater: format = {fmt}: its scales stand at the end of fixed pages, KvCache needs one that grows")
        self.row, self.apart = self.format.record_bytes(width)
        self.dtype = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}.get(self.format.name, torch.uint8)
        self.data = torch.zeros(batch, 0, heads, self.row // self.dtype.itemsize, dtype=self.dtype)
        scale_type = torch.float32 if self.format.name == "int8" else torch.uint8
        self.blocks = torch.zeros(batch, 0, heads, self.apart // scale_type.itemsize, dtype=scale_type) if self.apart else None

    def reserve(self, length):
        if length > self.data.shape[1]:
            room = max(length, 2 * self.data.shape[1], 16) - self.data.shape[1]
            grow = lambda a: torch.cat([a, a.new_zeros(a.shape[0], room, *a.shape[2:])], 1)  # noqa: E731
            self.data = grow(self.data)
            self.blocks = None if self.blocks is None else grow(self.blocks)

    def source(self):
        return Source(k=self.data, format=self.format.name, width=self.width, k_block_scales=self.blocks, value_width=self.width)

    def write(self, rows):
        """rows (b, h, T, d)"""
        t = rows.shape[2]
        self.reserve(self.length + t)
        slots = torch.arange(self.batch)[:, None] * self.data.shape[1] + self.length + torch.arange(t)
        append(self.source(), rows.detach().transpose(1, 2).reshape(self.batch * t, self.heads, self.width), slots=slots.reshape(-1))
        self.length += t

    def read(self):
        """(b, h, N, d) float32"""
        slots = torch.arange(self.batch)[:, None] * self.data.shape[1] + torch.arange(self.length)
        rows = gather(self.source(), slots.reshape(-1))[0]
        return rows.view(self.batch, self.length, self.heads, self.width).transpose(1, 2)

    def select(self, index):
        self.data, self.batch = self.data[index], len(index)
        self.blocks = None if self.blocks is None else self.blocks[index]

    def bytes(self):
        return self.batch * self.length * self.heads * (self.row + self.apart)


class KvLayer(CacheLayerMixin):
    """One layer's K and V as the bytes of their formats; the last `recent` tokens stay in bf16 until they leave."""

    is_sliding = False

    def __init__(self, k_format="bf16", v_format="bf16", recent=0, decode=False, **kwargs):
        super().__init__()
        self.k_format, self.v_format, self.recent, self.decode = k_format, v_format, recent, decode
        self.old = self.new = None  # (K store, V store): older tokens, and the recent ones
        self.length = 0

    def lazy_initialization(self, key_states, value_states):
        (b, h, _, d), dv = key_states.shape, value_states.shape[-1]
        self.device, self.dtype = key_states.device, key_states.dtype
        if self.device.type != "cpu":
            raise _native.Error(f"headwater: keys.device = {self.device}: KvCache writes with append, which runs on the CPU only")
        self.old = (_Store(self.k_format, d, h, b), _Store(self.v_format, dv, value_states.shape[1], b))
        self.waiting = (key_states[:, :, :0], value_states[:, :, :0])
        self.keys = self.values = torch.empty(0)
        self.is_initialized = True

    def update(self, key_states, value_states, *args, **kwargs):
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        self.length += key_states.shape[2]
        if self.recent == 0:
            for store, rows in zip(self.old, (key_states, value_states)):
                store.write(rows)
        else:
            self._keep_recent(key_states, value_states)
        if self.decode:
            return self.decoded(0).to(self.dtype), self.decoded(1).to(self.dtype)
        return tuple(self._carrier(a) for a in (key_states, value_states))

    def _keep_recent(self, *rows):
        """The raw rows wait, rounded to bf16; what is older than `recent` tokens is quantised."""
        self.waiting = tuple(torch.cat([held, new.detach().to(torch.bfloat16).to(new.dtype)], 2) for held, new in zip(self.waiting, rows))
        leave = self.waiting[0].shape[2] - self.recent
        if leave > 0:
            for store, held in zip(self.old, self.waiting):
                store.write(held[:, :, :leave])
            self.waiting = tuple(held[:, :, leave:].contiguous() for held in self.waiting)

    def _carrier(self, states):
        """Of the whole length's shape, without its bytes: the attention function finds the layer on it. Read as numbers it is NaN."""
        carrier = states.new_full((1, 1, 1, 1), float("nan")).expand(states.shape[0], states.shape[1], self.length, states.shape[-1])
        carrier._headwater_layer = self
        return carrier

    def decoded(self, part):
        """K (part 0) or V (part 1) of all tokens, as the kernels read them: (b, h, N, d) float32."""
        held = self.waiting[part].float()
        return torch.cat([self.old[part].read(), held], 2) if self.recent else self.old[part].read()

    def sources(self, seen, rule, window_left):
        """(sources, context_lens) over the stored bytes."""
        if seen is not None and (seen.lists is not None or seen.starts is not None or seen.lens is not None):
            raise _native.Error("headwater: attention_mask: KvCache takes equally long requests without padding; batch those together")
        k, v = self.old
        b = k.batch
        sources = []
        context = full(k.data, b, self.length)
        if k.length > 0:
            sources.append(
                Source(
                    k=k.data, v=v.data, format=k.format.name, v_format=v.format.name, width=k.width, v_width=v.width, k_block_scales=k.blocks,
                    v_block_scales=v.blocks, block_table=arange(k.data, b)[:, None], seq_lens=full(k.data, b, k.length), rule=rule, window_left=window_left,
                )  # fmt: skip
            )
        if self.recent and self.waiting[0].shape[2] > 0:
            recent = _dense_source(*(held.to(torch.bfloat16) for held in self.waiting), self.waiting[1].shape[-1], rule, window_left)
            recent.first_position = full(k.data, b, k.length)
            sources.append(recent)
        return sources, context

    def bytes(self):
        """Of all tokens, scales included: what this layer would cost in an engine."""
        if not self.is_initialized:
            return 0
        return sum(store.bytes() for store in self.old) + sum(2 * held.numel() for held in self.waiting)

    def get_mask_sizes(self, query_length):
        return self.length + query_length, 0

    def get_seq_length(self):
        return self.length

    def get_max_length(self):
        return -1

    def reset(self):
        self.__init__(self.k_format, self.v_format, self.recent, self.decode)

    def reorder_cache(self, beam_idx):
        for store in self.old:
            store.select(beam_idx)
        self.waiting = tuple(held[beam_idx] for held in self.waiting)


class KvCache(Cache):
    """A Transformers cache whose layers hold k_format and v_format bytes, written by append and read by the attention kernels.

    Use it with attn_implementation="headwater". decode=True hands decoded tensors to the model instead (any attention implementation, and
    models that expand a latent first); the bytes are the same. recent: this many last tokens stay in bf16.
    """

    def __init__(self, k_format="bf16", v_format=None, recent=0, decode=False):
        v_format = k_format if v_format is None else v_format
        for name in (k_format, v_format):
            _native.format_of(name)

        class Layer(KvLayer):
            def __init__(self, *_, **__):
                super().__init__(k_format, v_format, recent, decode)

        Layer.reset = lambda self: self.__init__()
        super().__init__(layer_class_to_replicate=Layer)

    def bytes(self):
        return sum(layer.bytes() for layer in self.layers)
