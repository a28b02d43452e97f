"""headwater.attention: the plain first call."""

from . import _native
from ._calls import attend, is_torch, torch_module
from ._describe import Problem, Source, dtype_name


def arange(like, count, step=1):
    """int32 [0, step, 2 step, ...) of `count` values beside `like`."""
    if is_torch(like):
        import torch

        return torch.arange(count, dtype=torch.int32, device=like.device) * step
    import numpy

    return numpy.arange(count, dtype=numpy.int32) * numpy.int32(step)


def full(like, count, value):
    """int32 [count] of one value."""
    if is_torch(like):
        import torch

        return torch.full((count,), value, dtype=torch.int32, device=like.device)
    import numpy

    return numpy.full((count,), value, numpy.int32)


def swap(a):
    """(b, h, T, d) as (b, T, h, d), no copy."""
    return a.transpose(1, 2) if is_torch(a) else a.swapaxes(1, 2)


def token_rows(q):
    """(b, h, T, d) as rows [b * T, h, d]: a view where one row stride serves all, otherwise a copy of the queries (never of K or V)."""
    b, h, t, d = q.shape
    return swap(q).reshape(b * t, h, d)


def check_kind(q, **others):
    """All torch or all numpy; no gradient."""
    torch_q = is_torch(q)
    for name, a in others.items():
        if a is not None and is_torch(a) != torch_q:
            raise _native.Error(f"headwater: {name} = {type(a).__name__}: must be of the kind of q, {type(q).__name__}")
    if torch_q:
        for name, a in others.items():
            if a is not None and a.device != q.device:
                raise _native.Error(f"headwater: {name}.device = {a.device}: must be that of q, {q.device}")
        torch_module().refuse_grad(q=q, **others)
    else:
        import numpy

        for name, a in {"q": q, **others}.items():
            if a is not None and not isinstance(a, numpy.ndarray):
                raise _native.Error(f"headwater: {name} = {type(a).__name__}: must be a torch tensor or a numpy array")


def check_shape(name, a, expect):
    """expect: one entry an axis, None = any."""
    shape = tuple(a.shape)
    if len(shape) != len(expect) or any(e is not None and e != s for e, s in zip(expect, shape)):
        text = ", ".join("any" if e is None else str(e) for e in expect)
        raise _native.Error(f"headwater: {name}.shape = {list(shape)}: must be [{text}]")


def _dense_source(k, v, value_width, rule, window_left):
    """K and V (b, h_kv, N, d) as one page a request: any strides, no copy."""
    pages, n = k.shape[0], k.shape[2]
    return Source(
        k=swap(k), v=None if v is None else swap(v), value_width=value_width, block_table=arange(k, pages)[:, None],
        seq_lens=full(k, pages, n), rule=rule, window_left=window_left,
    )  # fmt: skip


def attention(q, k, v=None, *, scale=None, is_causal=False, window_left=-1, sinks=None, softcap=0.0, return_lse=False, out=None, d_v=None):
    """Attention in SDPA's layout; causal is bottom-right: the last query sees all keys (SDPA's is_causal is top-left, which differs when T != N).

    q (b, h, T, d); k (b, h_kv, N, d), v (b, h_kv, N, d_v); h must be a multiple of h_kv (GQA needs no flag). v=None: V is the first d_v
    columns of K (default all). Strided and expanded views of K and V are read as they are. window_left = w: w + 1 keys including the query's
    own (needs is_causal). sinks (h,) or (b, h): float32 logits, not scaled. Returns out (b, h, T, d_v) in q's type, and with return_lse the
    float32 natural-log sum (b, h, T), sinks left out. A row that sees nothing gives 0 and -inf. Inference only.
    """
    check_kind(q, k=k, v=v, sinks=sinks, out=out)
    if len(q.shape) != 4:
        raise _native.Error(f"headwater: q.shape = {list(q.shape)}: must be (b, h, T, d)")
    b, h, t, d = q.shape
    check_shape("k", k, (b, None, None, d))
    heads_kv, n = k.shape[1], k.shape[2]
    if v is not None:
        check_shape("v", v, (b, heads_kv, n, None))
        if d_v is not None:
            raise _native.Error(f"headwater: d_v = {d_v}: only for v=None, leave None")
    if heads_kv == 0 or h % heads_kv != 0:
        raise _native.Error(f"headwater: q heads = {h}: must be a multiple of k's {heads_kv}")
    for name, a in (("k", k), ("v", v)):
        if a is not None and dtype_name(a) != dtype_name(q):
            raise _native.Error(f"headwater: {name}.dtype = {dtype_name(a)}: must be that of q, {dtype_name(q)}")
    if window_left < -1 or (window_left >= 0 and not is_causal):
        raise _native.Error(f"headwater: window_left = {window_left}: must be -1, or at least 0 together with is_causal=True")
    width = v.shape[-1] if v is not None else (d if d_v is None else d_v)
    rule = "full" if not is_causal else ("window" if window_left >= 0 else "causal")
    scale = d**-0.5 if scale is None else scale
    if n == 0:
        return _nothing_visible(q, width, return_lse, out)
    problem = Problem(
        q=token_rows(q), sources=[_dense_source(k, v, width, rule, window_left)], qo_indptr=arange(q, b + 1, t), scale=scale, sinks=sinks, softcap=softcap
    )
    return batched_result(problem, (b, h, t, width), return_lse, out)


def batched_result(problem, shape, return_lse, out):
    """Runs a problem whose requests are equally long; results in SDPA's layout."""
    b, h, t, width = shape
    if out is not None:
        check_shape("out", out, shape)
    # A dense (b, h, T, d) output has no single row stride: computed beside it and copied.
    rows = None
    if out is not None:
        rows = _rows_view(out)
    result = attend(problem, return_lse=return_lse, out=rows)
    o, lse = result if return_lse else (result, None)
    o = swap(o.reshape(b, t, h, width))
    if out is not None:
        if rows is None:
            out[...] = o
        o = out
    return (o, swap(lse.reshape(b, t, h))) if return_lse else o


def _rows_view(out):
    """out (b, h, T, d) as rows [b * T, h, d] if it is a view, else None."""
    b, h, t, d = out.shape
    rows = swap(out)
    if is_torch(out):
        if b > 1 and t > 1 and rows.stride(0) != t * rows.stride(1):
            return None
        return rows.reshape(b * t, h, d)
    if b > 1 and t > 1 and rows.strides[0] != t * rows.strides[1]:
        return None
    view = rows.reshape(b * t, h, d)
    return view if view.base is not None else None


def _nothing_visible(q, width, return_lse, out):
    b, h, t, _ = q.shape
    if is_torch(q):
        o = q.new_zeros((b, h, t, width))
        lse = q.new_full((b, h, t), float("-inf"), dtype=torch_module().torch.float32)
    else:
        import numpy

        o, lse = numpy.zeros((b, h, t, width), q.dtype), numpy.full((b, h, t), -numpy.inf, numpy.float32)
    if out is not None:
        check_shape("out", out, (b, h, t, width))
        out[...] = o
        o = out
    return (o, lse) if return_lse else o
