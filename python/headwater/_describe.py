"""Problems in Python: a query, a list of sources, and the integers that tell the native side which array is what.

The order of the integers is that of python/native/unpack.h. They hold no sizes: those come from the tensors' shapes, so that a compiled
graph with dynamic shapes keeps one descriptor.
"""

from dataclasses import dataclass
from typing import Any, Optional

from . import _native

RULES = {"full": 0, "causal": 1, "window": 2, "compressed": 3, "gathered": 4}
INDEX_SPACES = {"slot": 0, "position": 1}
RAGGED, BLOCK_TABLE, PAGE_LIST, POOL = range(4)
OUT_TYPES = {"float32": 1, "float16": 2, "bfloat16": 3}
_NAN = float("nan")


def dtype_name(a):
    """'bfloat16' of a torch or numpy array."""
    return str(a.dtype).rpartition(".")[2]


def _default_format(a, field):
    name = {"float32": "f32", "float16": "f16", "bfloat16": "bf16", "float8_e4m3fn": "e4m3", "float8_e5m2": "e5m2"}.get(dtype_name(a))
    if name is None:
        raise _native.Error(f"headwater: {field} = None: must be given for {dtype_name(a)} storage")
    return name


@dataclass
class Source:
    """One KV store. Tensors may be torch or numpy, strided views included.

    k, v: paged [pages, page_size, heads, record], ragged [rows, heads, record]; v=None: V is the first value_width columns of K.
    format, v_format: names of docs/formats.md; None = the tensor's own float type.
    Addressing: block_table [b, max_pages] with seq_lens [b]; or kv_indices with kv_indptr (pages) and seq_lens or kv_last_page_len; or
    kv_indptr alone (ragged, tokens); or none of them (a pool, for gathered slots).
    rule: full, causal, window (window_left), compressed (ratio), gathered (indices [total_q, k], topk_lens, index_space).
    """

    k: Any
    v: Optional[Any] = None
    format: Optional[str] = None
    v_format: Optional[str] = None
    value_width: int = 0
    width: int = 0
    v_width: int = 0
    k_scale: Any = None
    v_scale: Any = None
    k_block_scales: Optional[Any] = None
    v_block_scales: Optional[Any] = None
    block_table: Optional[Any] = None
    kv_indptr: Optional[Any] = None
    kv_indices: Optional[Any] = None
    seq_lens: Optional[Any] = None
    kv_last_page_len: Optional[Any] = None
    rule: str = "full"
    window_left: int = -1
    ratio: int = 0
    indices: Optional[Any] = None
    topk_lens: Optional[Any] = None
    index_space: str = "slot"
    first_position: Optional[Any] = None
    position_stride: Optional[Any] = None

    def addressing(self):
        if self.block_table is not None:
            return BLOCK_TABLE
        if self.kv_indices is not None:
            return PAGE_LIST
        return RAGGED if self.kv_indptr is not None else POOL


class _Tensors:
    """Arrays of a call, each once."""

    def __init__(self):
        self.list = []

    def add(self, a):
        if a is None:
            return -1
        for i, known in enumerate(self.list):
            if known is a:
                return i
        self.list.append(a)
        return len(self.list) - 1


def _number_or_tensor(scale, tensors):
    """(index, number): a k_scale is a Python number or a float32 array."""
    if scale is None:
        return -1, _NAN
    if isinstance(scale, (int, float)):
        return -1, float(scale)
    return tensors.add(scale), _NAN


def _packed_width(entry, stored):
    """Columns of a record whose storage elements are no columns; 0 where they are."""
    if entry.fixed_width:
        return entry.fixed_width
    if entry.name in ("mxfp4", "nvfp4"):
        return 2 * stored
    return stored // 34 * 32 if entry.name == "q8_0" else 0


def pack_source(source, tensors):
    """(26 integers, [k_scale, v_scale])"""
    if source.rule not in RULES:
        raise _native.Error(f"headwater: rule = {source.rule!r}: must be one of {', '.join(RULES)}")
    if source.index_space not in INDEX_SPACES:
        raise _native.Error(f"headwater: index_space = {source.index_space!r}: must be one of {', '.join(INDEX_SPACES)}")
    shared = source.v is None
    k_format = _native.format_of(source.format or _default_format(source.k, "format"))
    v_format = k_format if shared else _native.format_of(source.v_format or source.format or _default_format(source.v, "v_format"))
    k_scale, k_number = _number_or_tensor(source.k_scale, tensors)
    v_scale, v_number = _number_or_tensor(source.v_scale, tensors)
    addressing = source.addressing()
    k, v = source.k, source.v
    if addressing == POOL and len(k.shape) == 3:
        k = k[:, None]
        v = None if v is None else v[:, None]
    v_width = source.v_width
    if v is not None and v_width == 0:
        v_width = _packed_width(v_format, v.shape[-1])
    fields = [
        k_format.index, source.width, v_format.index, v_width, 1 if shared else 0, source.value_width,
        tensors.add(k), tensors.add(source.k_block_scales), k_scale, tensors.add(v), tensors.add(source.v_block_scales), v_scale,
        addressing, tensors.add(source.block_table), tensors.add(source.kv_indptr), tensors.add(source.kv_indices),
        tensors.add(source.seq_lens), tensors.add(source.kv_last_page_len), RULES[source.rule], source.window_left, source.ratio,
        tensors.add(source.indices), tensors.add(source.topk_lens), INDEX_SPACES[source.index_space],
        tensors.add(source.first_position), tensors.add(source.position_stride),
    ]  # fmt: skip
    return fields, [k_number, v_number]


@dataclass
class Problem:
    """What one call computes (docs/design.md): q [total, heads, d], requests packed by qo_indptr [b+1]."""

    q: Any
    sources: list
    qo_indptr: Any
    scale: float
    sinks: Optional[Any] = None
    softcap: float = 0.0
    context_lens: Optional[Any] = None
    q_tail: Optional[Any] = None
    q_scale: Optional[Any] = None
    out_dtype: Optional[str] = None
    batch_invariant: bool = False
    checked: bool = False

    def out_type(self):
        name = self.out_dtype or dtype_name(self.q)
        if self.out_dtype is None and name.startswith("float8"):
            name = "bfloat16"
        if name not in OUT_TYPES:
            raise _native.Error(f"headwater: out.dtype = {name}: must be bfloat16, float16 or float32")
        return name

    def pack(self):
        """(tensors, descriptor, numbers)"""
        tensors = _Tensors()
        flags = (1 if self.batch_invariant else 0) + (2 if self.checked else 0)
        descriptor = [
            1, len(self.sources), OUT_TYPES[self.out_type()], tensors.add(self.q_tail), tensors.add(self.q_scale),
            tensors.add(self.qo_indptr), tensors.add(self.context_lens), tensors.add(self.sinks), flags,
        ]  # fmt: skip
        numbers = [float(self.scale), float(self.softcap)]
        for source in self.sources:
            fields, scales = pack_source(source, tensors)
            descriptor += fields
            numbers += scales
        return tensors.list, descriptor, numbers


def value_width(tensors, descriptor):
    """Output width of a packed call: the first source's."""
    shared, width, v_width, v = descriptor[13], descriptor[14], descriptor[12], descriptor[18]
    if shared:
        return width
    return v_width if v_width > 0 else tensors[v].shape[-1]
