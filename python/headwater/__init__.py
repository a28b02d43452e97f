"""Headwater: exact attention over long, compressed and low-precision KV caches. torch tensors or numpy arrays in, the same kind out."""

import importlib

from ._attention import attention
from ._calls import Plan, append, attend, gather, merge_states
from ._describe import Problem, Source
from ._native import FORMATS, Error, backends, version

__version__ = version
# Parts that need torch (or more) load with their first use: `import headwater` itself needs numpy at most.
_LAZY = {
    "dsv4_attention": "_dsv4",
    "mla_decode": "_mla",
    "mla_problem": "_mla",
    "warmup": "_dsv4",
    "capture": "_capture",
    "capture_paged": "_capture",
    "compare": "_compare",
    "flash_mla": None,
    "hf": None,
    "plot": None,
}
__all__ = ["Error", "FORMATS", "Plan", "Problem", "Source", "append", "attend", "attention", "backends", "gather", "merge_states", *_LAZY]


def __getattr__(name):
    if name not in _LAZY:
        raise AttributeError(f"module 'headwater' has no attribute {name!r}")
    if _LAZY[name] is None:
        return importlib.import_module(f"headwater.{name}")
    value = getattr(importlib.import_module(f"headwater.{_LAZY[name]}"), name)
    globals()[name] = value
    return value
