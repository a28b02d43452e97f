"""Calls on torch tensors (through the dispatcher) or numpy arrays (through ctypes): the same integers, the same native code."""

import sys

from . import _native
from ._describe import Problem, Source, _Tensors, dtype_name, pack_source, value_width

_ALIGNMENT = 256


def is_torch(a):
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(a, torch.Tensor)


def torch_module():
    """headwater._torch, loaded with the first tensor."""
    from . import _torch

    return _torch


def _numpy_dtype(name):
    import numpy

    if name == "bfloat16":
        import ml_dtypes

        return numpy.dtype(ml_dtypes.bfloat16)
    return numpy.dtype(name)


def _torch_dtype(name):
    import torch

    return getattr(torch, name)


def empty(like, shape, name):
    """An uninitialised array of the same kind and device."""
    if is_torch(like):
        return like.new_empty(shape, dtype=_torch_dtype(name))
    import numpy

    return numpy.empty(shape, _numpy_dtype(name))


def _buffer(like, size):
    """uint8 of `size`, starting at a multiple of 256 bytes."""
    if is_torch(like):
        import torch

        whole = torch.empty(size + _ALIGNMENT, dtype=torch.uint8, device=like.device)
        start = -whole.data_ptr() % _ALIGNMENT
    else:
        import numpy

        whole = numpy.empty(size + _ALIGNMENT, numpy.uint8)
        start = -whole.ctypes.data % _ALIGNMENT
    return whole[start : start + size]


def attend(problem: Problem, *, return_lse=False, out=None, lse=None):
    """One call: out [total, heads, d_v], or (out, lse [total, heads]) where return_lse. For many layers with the same lengths keep a Plan."""
    tensors, descriptor, numbers = problem.pack()
    if is_torch(problem.q):
        ops = torch_module().ops
        if out is None and lse is None:
            out, lse = ops.attend(problem.q, tensors, descriptor, numbers, return_lse)
            return (out, lse) if return_lse else out
    total, heads = problem.q.shape[0], problem.q.shape[1]
    if out is None:
        out = empty(problem.q, (total, heads, value_width(tensors, descriptor)), problem.out_type())
    if return_lse and lse is None:
        lse = empty(problem.q, (total, heads), "float32")
    if is_torch(problem.q):
        ops.attend.out(problem.q, tensors, descriptor, numbers, out=out, lse=lse)
    else:
        call = _native.NumpyCall(problem.q, tensors, descriptor, numbers, out, lse)
        bounds = call.bounds()
        if total > 0 and bounds[3] > 0:
            schedule_bytes, scratch_bytes = _native.plan_bytes(bounds)
            schedule, scratch = _buffer(problem.q, schedule_bytes), _buffer(problem.q, scratch_bytes)
            call.schedule(bounds, schedule)
            call.run(bounds, schedule, scratch)
    return (out, lse) if return_lse else out


_HEADER = {"max_requests": 3, "max_total_q": 4, "max_q_len": 5}
_SOURCE_START, _SOURCE_SIZE, _MAX_LEN, _MAX_TOTAL, _PAGE_ALIGNMENT = 16, 15, 12, 13, 14


class Plan:
    """What can be fixed before lengths are known: kernel, tiles and buffer sizes.

    Plan(problem) takes its bounds from an example; max_requests, max_total_q, max_q_len and max_len (per source, or one for all) raise
    them to what later steps may need. Then once a step `schedule(problem)`, and once a layer `run(problem, out)`: neither synchronises
    nor allocates. The plan itself is integers: nothing of it crosses the dispatcher as an object.
    """

    def __init__(self, problem, *, max_requests=None, max_total_q=None, max_q_len=None, max_len=None, workers=0):
        self.workers = workers
        self.scheduled = False
        self.bounds = _bounds_of(problem)
        for name, value in (("max_requests", max_requests), ("max_total_q", max_total_q), ("max_q_len", max_q_len)):
            if value is not None:
                self.bounds[_HEADER[name]] = int(value)
        lens = max_len if isinstance(max_len, (list, tuple)) else [max_len] * len(problem.sources)
        if len(lens) != len(problem.sources):
            raise _native.Error(f"headwater: max_len: {len(lens)} values for {len(problem.sources)} sources")
        for s, value in enumerate(lens):
            if value is not None:
                at = _SOURCE_START + s * _SOURCE_SIZE
                self.bounds[at + _MAX_LEN] = int(value)
                self.bounds[at + _MAX_TOTAL] = 0
        if is_torch(problem.q) and problem.q.device.type == "cpu" and workers == 0:
            import torch

            self.workers = torch.get_num_threads()
        self.schedule_bytes, self.scratch_bytes = _native.plan_bytes(self.bounds, self.workers)
        self.schedule_buffer = _buffer(problem.q, self.schedule_bytes)
        self.scratch_buffer = _buffer(problem.q, self.scratch_bytes)

    @property
    def kernel(self):
        return _native.plan_kernel(self.bounds, self.workers)

    def schedule(self, problem):
        """Deals the work of this step's lengths; returns self, so plan.schedule(p).run(p, out) reads well."""
        tensors, descriptor, numbers = problem.pack()
        if is_torch(problem.q):
            torch_module().ops.schedule(problem.q, tensors, descriptor, numbers, self.bounds, self.schedule_buffer)
        else:
            _native.NumpyCall(problem.q, tensors, descriptor, numbers).schedule(self.bounds, self.schedule_buffer)
        self.scheduled = True
        return self

    def run(self, problem, out=None, lse=None):
        tensors, descriptor, numbers = problem.pack()
        if out is None:
            out = empty(problem.q, (problem.q.shape[0], problem.q.shape[1], value_width(tensors, descriptor)), problem.out_type())
        if is_torch(problem.q):
            torch_module().ops.run(problem.q, tensors, descriptor, numbers, self.bounds, self.schedule_buffer, self.scratch_buffer, out, lse)
        else:
            _native.NumpyCall(problem.q, tensors, descriptor, numbers, out, lse).run(self.bounds, self.schedule_buffer, self.scratch_buffer)
        return out

    def check(self):
        """Synchronises: raises if a run met lengths other than the scheduled ones."""
        if is_torch(self.schedule_buffer):
            torch_module().ops.check(self.bounds, self.schedule_buffer)
        else:
            _native.check_schedule(self.bounds, self.schedule_buffer)


def _bounds_of(problem):
    tensors, descriptor, numbers = problem.pack()
    out = empty(problem.q, (problem.q.shape[0], problem.q.shape[1], value_width(tensors, descriptor)), problem.out_type())
    if is_torch(problem.q):
        return TorchCall(problem.q, tensors, descriptor, numbers, out).bounds()
    return _native.NumpyCall(problem.q, tensors, descriptor, numbers, out).bounds()


class TorchCall(_native.NumpyCall):
    """The same call record from torch tensors: only bounds are asked of it, which read host memory alone."""

    def __init__(self, q, tensors, descriptor, numbers, out):
        records = [_torch_array(t) for t in tensors]
        self.arrays = (_native.Array * len(records))(*records)
        self.ints, self.doubles = _native._ints(descriptor), _native._doubles(numbers)
        self.keep = (q, tensors, out)
        import ctypes

        self.q, self.out = _torch_array(q), _torch_array(out)
        self.call = _native.Call(ctypes.pointer(self.q), self.arrays, len(records), self.ints, len(descriptor), self.doubles, len(numbers), ctypes.pointer(self.out), None)


def _torch_array(t):
    record = _native.Array()
    record.data, record.ndim = t.data_ptr(), t.dim()
    record.type = _native.TYPES.get(dtype_name(t), 101)
    for i in range(min(t.dim(), _native._MAX_DIMS)):
        record.shape[i], record.strides[i] = t.shape[i], t.stride(i)
    if t.device.type == "cuda":
        record.device_kind, record.device_index = 1, t.device.index or 0
    elif t.device.type != "cpu":
        raise _native.Error(f"headwater: device = {t.device}: must be cpu or cuda")
    return record


def merge_states(a, lse_a, b, lse_b, *, out=None, lse=None):
    """(out, lse) of two partial answers [tokens, heads, width] with natural-log lse [tokens, heads]; -inf = absent."""
    if is_torch(a):
        ops = torch_module().ops
        if out is None and lse is None:
            return ops.merge_states(a, lse_a, b, lse_b)
    out = empty(a, tuple(a.shape), dtype_name(a)) if out is None else out
    lse = empty(a, tuple(a.shape[:2]), "float32") if lse is None else lse
    if is_torch(a):
        ops.merge_states.out(a, lse_a, b, lse_b, out=out, lse=lse)
    else:
        _native.merge(a, lse_a, b, lse_b, out, lse)
    return out, lse


_BLOCK_SCALE_RULES = {"round_up": 0, "even": 1, "floor": 2}


def append(cache: Source, k, v=None, slots=None, *, k_tail=None, block_scale_rule="round_up"):
    """Quantises rows k [count, heads, width] (and v) into the cache's slots [count] (int64; negative = skip)."""
    if block_scale_rule not in _BLOCK_SCALE_RULES:
        raise _native.Error(f"headwater: block_scale_rule = {block_scale_rule!r}: must be one of {', '.join(_BLOCK_SCALE_RULES)}")
    tensors = _Tensors()
    fields, numbers = pack_source(cache, tensors)
    rule = _BLOCK_SCALE_RULES[block_scale_rule]
    if is_torch(k):
        torch_module().ops.append(tensors.list, fields, numbers, k, k_tail, v, slots, rule)
    else:
        _native.append(tensors.list, fields, numbers, k, k_tail, v, slots, rule)


def gather(cache: Source, slots):
    """(k, v) of slots [count] (int64), decoded to float32: [count, heads, width] and [count, heads, d_v]."""
    tensors = _Tensors()
    fields, numbers = pack_source(cache, tensors)
    heads = cache.k.shape[-2]
    k_format = _native.format_of(cache.format or "f32") if cache.format else None
    from ._describe import _packed_width

    k_width = cache.width or (_packed_width(k_format, cache.k.shape[-1]) if k_format else 0) or cache.k.shape[-1]
    v_width = cache.value_width if cache.v is None else (fields[3] or cache.v.shape[-1])
    k = empty(slots, (slots.shape[0], heads, k_width), "float32")
    v = empty(slots, (slots.shape[0], heads, v_width), "float32")
    if is_torch(slots):
        torch_module().ops.gather.out(tensors.list, fields, numbers, slots, k=k, v=v)
    else:
        _native.gather(tensors.list, fields, numbers, slots, k, v)
    return k, v
