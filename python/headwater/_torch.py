"""torch.ops.headwater: loads the op library and gives its operators their shapes for tracing."""

import os

import torch

from . import _native
from ._describe import value_width

_path = os.path.join(_native._FOLDER, "libheadwater_torch.so")
if not os.path.exists(_path):
    raise ImportError(
        "headwater: this install has no torch operators, since torch >= 2.11 was not in the environment when it was built; "
        "install torch, then `pip install --force-reinstall --no-deps .` again from the clone"
    )
_parts = [int("".join(c for c in part if c.isdigit()) or 0) for part in torch.__version__.split("+")[0].split(".")[:2]]
if _parts < [2, 11]:
    raise ImportError(f"headwater: torch {torch.__version__}: must be 2.11 or newer")
torch.ops.load_library(_path)
ops = torch.ops.headwater

DTYPES = {1: torch.float32, 2: torch.float16, 3: torch.bfloat16}


@torch.library.register_fake("headwater::attend")
def _(q, tensors, descriptor, numbers, return_lse):
    out = q.new_empty((q.shape[0], q.shape[1], value_width(tensors, descriptor)), dtype=DTYPES[descriptor[2]])
    return out, q.new_empty((q.shape[0] if return_lse else 0, q.shape[1]), dtype=torch.float32)


@torch.library.register_fake("headwater::merge_states")
def _(a, lse_a, b, lse_b):
    return a.new_empty(a.shape), a.new_empty(a.shape[:2], dtype=torch.float32)


# Operators that write into their arguments return nothing: nothing to shape.
@torch.library.register_fake("headwater::attend.out")
def _(q, tensors, descriptor, numbers, *, out, lse):
    return None


@torch.library.register_fake("headwater::schedule")
def _(q, tensors, descriptor, numbers, bounds, schedule):
    return None


@torch.library.register_fake("headwater::run")
def _(q, tensors, descriptor, numbers, bounds, schedule, scratch, out, lse):
    return None


@torch.library.register_fake("headwater::check")
def _(bounds, schedule):
    return None


@torch.library.register_fake("headwater::merge_states.out")
def _(a, lse_a, b, lse_b, *, out, lse):
    return None


@torch.library.register_fake("headwater::append")
def _(tensors, source, numbers, k, k_tail, v, slots, block_scale_rule):
    return None


@torch.library.register_fake("headwater::gather.out")
def _(tensors, source, numbers, slots, *, k, v):
    return None


def refuse_grad(**tensors):
    """Inference only: a tensor that wants a gradient would silently lose it."""
    if not torch.is_grad_enabled():
        return
    for name, tensor in tensors.items():
        if isinstance(tensor, torch.Tensor) and tensor.requires_grad:
            raise _native.Error(f"headwater: {name}.requires_grad = True: must be False, there is no backward pass; use torch.no_grad()")
