"""headwater.capture: q, k, v (or the latent) of a running model into a problem file that `headwater formats` reads. docs/capture.md."""

import contextlib

import torch

from . import _native

_NAME = "headwater_capture"


class _Recorder:
    def __init__(self, layers, max_tokens, dtype):
        self.layers = None if layers is None else set(layers)
        self.max_tokens, self.dtype = max_tokens, dtype
        self.found = {}  # layer: {"q": [rows...], "k": [...], "v": [...], "q_lens": [...], "kv_lens": [...], "meta": {...}}
        self.latents = {}  # id of an attention module: (latent, rope) of its running call

    def wants(self, layer):
        return self.layers is None or layer in self.layers

    def add(self, layer, q, k, v, meta):
        """q (b, h, T, d), k (b, h_kv, N, d), v or None: each batch entry is a request, while the layer has room."""
        entry = self.found.setdefault(layer, {"q": [], "k": [], "v": [], "q_lens": [], "kv_lens": [], "meta": meta})
        if entry["meta"] != meta:
            raise _native.Error(f"headwater: capture: layer {layer} changed from {entry['meta']} to {meta}")
        for b in range(q.shape[0]):
            if sum(entry["kv_lens"]) + k.shape[2] > self.max_tokens:
                return
            rows = lambda a: a[b].detach().transpose(0, 1).to(self.dtype).cpu()  # noqa: E731, B023
            entry["q"].append(rows(q))
            entry["k"].append(rows(k))
            entry["q_lens"].append(q.shape[2])
            entry["kv_lens"].append(k.shape[2])
            if v is not None:
                entry["v"].append(rows(v))

    def tensors(self):
        """(tensors, metadata) of the problem file."""
        tensors, metadata = {}, {}
        for layer, entry in sorted(self.found.items()):
            if not entry["q"]:
                continue
            at = f"layers.{layer}."
            offsets = lambda lens: torch.tensor([0, *torch.tensor(lens).cumsum(0).tolist()], dtype=torch.int32)  # noqa: E731
            tensors[at + "q"] = torch.cat(entry["q"]).contiguous()
            tensors[at + "qo_indptr"] = offsets(entry["q_lens"])
            tensors[at + "kv.0.kv_indptr"] = offsets(entry["kv_lens"])
            tensors[at + ("kv.0.k" if entry["v"] else "kv.0.latent")] = torch.cat(entry["k"]).contiguous()
            if entry["v"]:
                tensors[at + "kv.0.v"] = torch.cat(entry["v"]).contiguous()
            sinks = entry["meta"].get("sinks")
            if sinks is not None:
                tensors[at + "sinks"] = torch.tensor(sinks)
            for key, value in entry["meta"].items():
                if key != "sinks":
                    metadata[at + key] = str(value)
        return tensors, metadata


@contextlib.contextmanager
def capture(model, path, *, layers=None, max_tokens=4096, dtype=torch.bfloat16, note=""):
    """Within the block every forward pass of `model` records q, k, v after rotary embedding (for MLA: the absorbed q and the latent after norm
    and rope) of the chosen layers; at its end they are written to `path`, a problem file with one problem a layer.

    Each sequence of each pass is a request; a layer takes requests while their keys number at most max_tokens. Without padding only.
    Attention runs through headwater meanwhile, which changes no result beyond rounding.
    """
    from safetensors.torch import save_file
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import eager_mask

    from . import hf

    recorder = _Recorder(layers, max_tokens, dtype)

    def forward(module, query, key, value, attention_mask, scaling=None, **kwargs):
        layer = getattr(module, "layer_idx", None)
        if layer is None:
            raise _native.Error(f"headwater: capture: {type(module).__name__} has no layer_idx")
        if recorder.wants(layer):
            _record(recorder, module, layer, query, key, value, attention_mask, scaling, kwargs)
        return hf.attention_forward(module, query, key, value, attention_mask, scaling=scaling, **kwargs)

    AttentionInterface.register(_NAME, forward)
    AttentionMaskInterface.register(_NAME, eager_mask)
    config = model.config.get_text_config()
    before, unwrap = config._attn_implementation, _wrap_latents(model, recorder)
    config._attn_implementation = _NAME
    try:
        yield recorder
    finally:
        config._attn_implementation = before
        unwrap()
    tensors, metadata = recorder.tensors()
    if not tensors:
        raise _native.Error("headwater: capture: nothing was recorded: no forward pass ran, or max_tokens is below the first one's length")
    metadata["origin"] = f"captured from {type(model).__name__} by headwater {_native.version}"
    if note:
        metadata["note"] = note
    save_file(tensors, path, metadata=metadata)


def _record(recorder, module, layer, query, key, value, mask, scaling, kwargs):
    from . import hf

    if getattr(key, "_headwater_layer", None) is not None:
        raise _native.Error("headwater: capture: keys held by a KvCache are quantised already; capture without it")
    seen = None if mask is None else hf._visible_once(mask, query.shape[2], key.shape[2], kwargs.get("sliding_window"))
    if seen is not None and (seen.starts is not None or seen.lens is not None or seen.lists is not None):
        raise _native.Error("headwater: capture: attention_mask: only causal and windowed sequences without padding are captured")
    window = (seen.window if seen is not None else kwargs.get("sliding_window")) or None
    meta = {"sm_scale": repr(float(query.shape[-1] ** -0.5 if scaling is None else scaling)), "kv.0.rule": "window" if window else "causal"}
    if window:
        meta["kv.0.window_left"] = window - 1
    if kwargs.get("softcap"):
        meta["logits_soft_cap"] = repr(float(kwargs["softcap"]))
    if kwargs.get("s_aux") is not None:
        meta["sinks"] = tuple(kwargs["s_aux"].detach().float().tolist())
    latent = recorder.latents.pop(id(module), None)
    if latent is None:
        recorder.add(layer, query, key, value, meta)
        return
    # Absorbed: q_nope through the key half of the expansion, so that scores against the latent are the scores of the model.
    kv, rope = latent
    rank, nope = kv.shape[-1], module.qk_nope_head_dim
    weight = module.kv_b_proj.weight.view(query.shape[1], nope + module.v_head_dim, rank)[:, :nope]
    absorbed = torch.einsum("bhtd,hdr->bhtr", query[..., :nope].float(), weight.float()).to(query.dtype)
    meta["kv.0.value_width"] = rank
    recorder.add(layer, torch.cat([absorbed, query[..., nope:]], -1), torch.cat([kv, rope], -1), None, meta)


def _wrap_latents(model, recorder):
    """Attention modules that expand a latent into K and V: it is seen before. Returns the way back."""
    wrapped = [module for module in model.modules() if hasattr(module, "expand_kv") and hasattr(module, "kv_b_proj")]

    def expand(module):
        original = module.expand_kv

        def call(kv, rope):
            recorder.latents[id(module)] = (kv.detach(), rope.detach())
            return original(kv, rope)

        return call

    for module in wrapped:
        module.expand_kv = expand(module)

    def unwrap():
        for module in wrapped:
            del module.expand_kv

    return unwrap


def capture_paged(path, cache, block_table, seq_lens, q, *, qo_indptr=None, sm_scale, v_cache=None, value_width=None, rule="causal", note=""):
    """For engines: one layer's paged cache [pages, page_size, heads, d] (with v_cache None the latent, V its first value_width columns), its
    block_table and seq_lens, and the step's q [total, h, d], as a problem file. Only pages that are in use are written."""
    from safetensors.torch import save_file

    if rule not in ("causal", "full"):
        raise _native.Error(f"headwater: rule = {rule!r}: must be causal or full")
    if v_cache is None and not value_width:
        raise _native.Error(f"headwater: value_width = {value_width}: must be given for a latent cache")
    page = cache.shape[1]
    counts = (seq_lens.cpu().long() + page - 1) // page
    used = torch.arange(block_table.shape[1])[None] < counts[:, None]
    table = block_table.cpu()
    pages, renumbered = torch.unique(table[used], return_inverse=True)
    written = torch.zeros_like(table)
    written[used] = renumbered.to(written.dtype)
    tensors = {"q": q.cpu().contiguous(), "kv.0.block_table": written.contiguous(), "kv.0.seq_lens": seq_lens.cpu().contiguous()}
    tensors["kv.0.k" if v_cache is not None else "kv.0.latent"] = cache.cpu()[pages.long()].contiguous()
    metadata = {"sm_scale": repr(float(sm_scale)), "kv.0.rule": rule, "origin": f"captured from an engine's cache by headwater {_native.version}"}
    if v_cache is not None:
        tensors["kv.0.v"] = v_cache.cpu()[pages.long()].contiguous()
    else:
        metadata["kv.0.value_width"] = str(value_width)
    if qo_indptr is None and block_table.shape[0] > 1:
        if q.shape[0] % block_table.shape[0]:
            raise _native.Error(f"headwater: qo_indptr = None: must be given where {q.shape[0]} rows are no multiple of {block_table.shape[0]} requests")
        qo_indptr = torch.arange(block_table.shape[0] + 1, dtype=torch.int32) * (q.shape[0] // block_table.shape[0])
    if qo_indptr is not None:
        tensors["qo_indptr"] = qo_indptr.cpu().contiguous()
    if note:
        metadata["note"] = note
    save_file(tensors, path, metadata=metadata)
