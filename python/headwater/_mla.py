"""headwater.mla_decode: decode over a latent cache in any of several formats."""

from . import _native
from ._attention import check_kind, check_shape
from ._calls import attend, is_torch
from ._describe import Problem, Source, dtype_name

_ORDER = ("fp8", "mxfp4", "bf16")


def mla_problem(q, kv_data, qo_indptr, kv_indptr, config, *, kv_format=None, sm_scale=None):
    """The problem that mla_decode runs: for a Plan kept across layers."""
    if len(q.shape) != 3:
        raise _native.Error(f"headwater: q.shape = {list(q.shape)}: must be [total_q, h_q, d_qk]")
    width = int(config.get("qk_head_dim", q.shape[2]))
    if q.shape[2] != width:
        raise _native.Error(f"headwater: q.shape[2] = {q.shape[2]}: must be config['qk_head_dim'] = {width}")
    if dtype_name(q) != "bfloat16":
        raise _native.Error(f"headwater: q.dtype = {dtype_name(q)}: must be bfloat16")
    value_width = int(config.get("v_head_dim", 512))
    if kv_format is None:
        kv_format = next((name for name in _ORDER if kv_data.get(name) is not None), None)
    if kv_format not in _ORDER or kv_data.get(kv_format) is None:
        raise _native.Error(f"headwater: kv_format = {kv_format!r}: must be one of {', '.join(_ORDER)} that kv_data holds, it has {sorted(kv_data)}")
    if sm_scale is None:
        sm_scale = config.get("sm_scale")
    if sm_scale is None:
        sm_scale = width**-0.5
    stored = kv_data[kv_format]
    if kv_format == "bf16":
        check_kind(q, kv=stored)
        source = Source(k=stored, format="bf16")
    elif kv_format == "fp8":
        data, scale = _pair(stored, "fp8")
        check_kind(q, kv=data)
        source = Source(k=data, format="e4m3", k_scale=scale)
    else:
        data, scales = _pair(stored, "mxfp4")
        check_kind(q, kv=data, scales=scales)
        source = Source(k=_bytes_of(data), format="mxfp4", width=width, k_block_scales=_latent_scales(scales, data.shape[0], width))
    check_shape(f"kv_data[{kv_format!r}]", source.k, (None, 1, width // 2 if kv_format == "mxfp4" else width))
    source.value_width, source.kv_indptr, source.rule = value_width, kv_indptr, "causal"
    return Problem(q=q, sources=[source], qo_indptr=qo_indptr, scale=sm_scale)


def mla_decode(q, kv_data, qo_indptr, kv_indptr, config, *, kv_format=None, plan=None, sm_scale=None):
    """MLA decode over packed requests: bf16 [total_q, h_q, v_head_dim]; causal, bottom-right.

    q [total_q, h_q, 576] bf16. kv_data: a dict with any of 'bf16': [total_kv, 1, 576], 'fp8': (e4m3 [total_kv, 1, 576], float32 scale),
    'mxfp4': (bytes [total_kv, 1, 288], e8m0 scales [rows >= total_kv, >= 18], any strides). Of those present the order is fp8, mxfp4, bf16
    unless kv_format says. qo_indptr, kv_indptr [b + 1] int32, both in tokens. config: sm_scale, v_head_dim, qk_head_dim are read.
    plan: a headwater.Plan of mla_problem(...): scheduled with its first use, then reused by every layer of the step; call
    plan.schedule(...) again when lengths change. Q stays bf16 for every format. Rows past qo_indptr[b] are 0.
    """
    problem = mla_problem(q, kv_data, qo_indptr, kv_indptr, config, kv_format=kv_format, sm_scale=sm_scale)
    shape = (q.shape[0], q.shape[1], problem.sources[0].value_width)
    if is_torch(q):
        out = q.new_zeros(shape)
    else:
        import numpy

        out = numpy.zeros(shape, q.dtype)
    if plan is None:
        return attend(problem, out=out)
    if not plan.scheduled:
        plan.schedule(problem)
    return plan.run(problem, out)


def _pair(stored, name):
    if not isinstance(stored, (tuple, list)) or len(stored) != 2:
        raise _native.Error(f"headwater: kv_data[{name!r}] = {type(stored).__name__}: must be (data, scale)")
    return stored


def _bytes_of(a):
    """Packed fp4 as plain bytes."""
    if is_torch(a) and dtype_name(a) != "uint8":
        import torch

        return a.view(torch.uint8)
    return a


def _latent_scales(scales, rows, width):
    """[>= rows, >= blocks] as [rows, 1, blocks]: padding is cut off, strides stay."""
    blocks = width // 32
    if len(scales.shape) == 3 and scales.shape[1] == 1:
        scales = scales[:, 0]
    if len(scales.shape) != 2 or scales.shape[0] < rows or scales.shape[1] < blocks:
        raise _native.Error(f"headwater: scales.shape = {list(scales.shape)}: must be at least [{rows}, {blocks}]")
    return scales[:rows, None, :blocks]
