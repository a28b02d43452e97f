"""headwater.dsv4_attention: a compressed prefix and a sliding window under one softmax, in one launch for the whole batch."""

from . import _native
from ._attention import _nothing_visible, arange, batched_result, check_kind, check_shape, full, swap, token_rows
from ._describe import Problem, Source, dtype_name


def _four_axes(name, a):
    """(batch, h, N, d), (h, N, d) or (N, d) as (batch or 1, h, N, d): views."""
    if not 2 <= len(a.shape) <= 4:
        raise _native.Error(f"headwater: {name}.shape = {list(a.shape)}: must be (batch, h_kv, N, d), (h_kv, N, d) or (N, d)")
    while len(a.shape) < 4:
        a = a[None]
    return a


def dsv4_attention(q, k, v=None, scale=None, swa_len=None, is_causal=False, n_comp=0, sink_bias=None, *, return_lse=False):
    """Attention of DeepSeek-V4's shape: the first n_comp rows are always visible, the rest are window rows ending at the last query.

    q (batch, h_q, T, d) or (h_q, T, d). k, v (batch, h_kv, N, d), (h_kv, N, d) or (N, d); the latter two serve the whole batch, nothing is
    copied; v=None: V is K. swa_len = W: each query sees the W window rows up to and including its own (implies causal). sink_bias (h_q,) or
    (batch, h_q), float32 logits, exact for every head. scale: d ** -0.5 unless given; 0 is honoured. Returns out in q's shape (d_v columns)
    and type; with return_lse also the float32 natural-log sum without the sink.
    """
    check_kind(q, k=k, v=v, sink_bias=sink_bias)
    if len(q.shape) not in (3, 4):
        raise _native.Error(f"headwater: q.shape = {list(q.shape)}: must be (batch, h_q, T, d) or (h_q, T, d)")
    unbatched = len(q.shape) == 3
    q4 = q[None] if unbatched else q
    k4 = _four_axes("k", k)
    v4 = None if v is None else _four_axes("v", v)
    batch, heads, t, d = q4.shape
    heads_kv, n = k4.shape[1], k4.shape[2]
    if k4.shape[0] != 1 or len(k.shape) == 4:
        check_shape("k", k4, (batch, None, None, d))
    check_shape("k", k4, (None, None, None, d))
    if v4 is not None:
        check_shape("v", v4, (k4.shape[0], heads_kv, n, None))
    if heads_kv == 0 or heads % heads_kv != 0:
        raise _native.Error(f"headwater: h_q = {heads}: must be a multiple of h_kv = {heads_kv}")
    for name, a in (("k", k), ("v", v)):
        if a is not None and dtype_name(a) != dtype_name(q):
            raise _native.Error(f"headwater: {name}.dtype = {dtype_name(a)}: must be that of q, {dtype_name(q)}")
    if not 0 <= n_comp <= n:
        raise _native.Error(f"headwater: n_comp = {n_comp}: must be from 0 to N = {n}")
    if swa_len is not None and swa_len < 1:
        raise _native.Error(f"headwater: swa_len = {swa_len}: must be at least 1, or None")
    rule, window_left = ("window", swa_len - 1) if swa_len is not None else ("causal" if is_causal else "full", -1)
    width = d if v4 is None else v4.shape[-1]
    if n == 0:
        result = _nothing_visible(q4, width, return_lse, None)
    else:
        problem = Problem(
            q=token_rows(q4), sources=_sources(k4, v4, width, batch, n_comp, rule, window_left), qo_indptr=arange(q4, batch + 1, t),
            scale=d**-0.5 if scale is None else scale, sinks=sink_bias,
        )  # fmt: skip
        result = batched_result(problem, (batch, heads, t, width), return_lse, None)
    if not unbatched:
        return result
    return (result[0][0], result[1][0]) if return_lse else result[0]


def _sources(k, v, width, batch, n_comp, rule, window_left):
    """The compressed rows and the window rows, each where it has any; pages are requests, or one page that all share."""
    pages, n = k.shape[0], k.shape[2]
    table = arange(k, batch)[:, None] if pages == batch else full(k, batch, 0)[:, None]
    parts = []
    if n_comp > 0:
        parts.append((0, n_comp, "full", -1))
    if n_comp < n:
        parts.append((n_comp, n, rule, window_left))
    return [
        Source(
            k=swap(k[:, :, begin:end]), v=None if v is None else swap(v[:, :, begin:end]), value_width=width, block_table=table,
            seq_lens=full(k, batch, end - begin), rule=part_rule, window_left=left,
        )
        for begin, end, part_rule, left in parts
    ]  # fmt: skip


def warmup(device="cpu", dtype=None, *, batch=1, heads=64, heads_kv=1, t=1, n=1024, d=512):
    """Does once what a first call does: loads the operators, starts the threads, touches the kernels. Afterwards the first real call of
    dsv4_attention or mla_decode is as fast as the second."""
    import torch

    from ._mla import mla_decode

    dtype = torch.bfloat16 if dtype is None else dtype
    with torch.no_grad():
        q = torch.zeros(batch, heads, t, d, dtype=dtype, device=device)
        k = torch.zeros(batch, heads_kv, n, d, dtype=dtype, device=device)
        dsv4_attention(q, k, swa_len=128, n_comp=n // 2, sink_bias=torch.zeros(heads, device=device))
        q = torch.zeros(batch, heads, 576, dtype=torch.bfloat16, device=device)
        kv = torch.zeros(batch * n, 1, 576, dtype=torch.bfloat16, device=device)
        config = {"v_head_dim": 512, "qk_head_dim": 576}
        mla_decode(q, {"bf16": kv}, arange(q, batch + 1), arange(q, batch + 1, n), config)
        if torch.device(device).type == "cuda":
            torch.cuda.synchronize(device)


