"""The native library through ctypes: formats, backends, and whole calls on numpy arrays. No torch in here."""

import ctypes
import os

_FOLDER = os.environ.get("HEADWATER_LIBRARY_DIR") or os.path.dirname(os.path.abspath(__file__))
_MAX_DIMS = 5

TYPES = {"float32": 1, "float16": 2, "bfloat16": 3, "float8_e4m3fn": 4, "float8_e5m2": 5, "int8": 6, "float8_e8m0fnu": 8, "int32": 9, "int64": 10, "uint8": 100}


class Error(RuntimeError):
    """A call that was refused: the message names the field, its value and the rule."""


class Array(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("type", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("shape", ctypes.c_int64 * _MAX_DIMS),
        ("strides", ctypes.c_int64 * _MAX_DIMS),
        ("device_kind", ctypes.c_int32),
        ("device_index", ctypes.c_int32),
    ]


class Call(ctypes.Structure):
    _fields_ = [
        ("q", ctypes.POINTER(Array)),
        ("tensors", ctypes.POINTER(Array)),
        ("num_tensors", ctypes.c_int32),
        ("descriptor", ctypes.POINTER(ctypes.c_int64)),
        ("descriptor_size", ctypes.c_int32),
        ("numbers", ctypes.POINTER(ctypes.c_double)),
        ("numbers_size", ctypes.c_int32),
        ("out", ctypes.POINTER(Array)),
        ("lse", ctypes.POINTER(Array)),
    ]


class Pool(ctypes.Structure):
    _fields_ = [("parallel_for", ctypes.c_void_p), ("context", ctypes.c_void_p), ("workers", ctypes.c_int32)]


class Bytes(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("size", ctypes.c_size_t)]


def _load():
    path = os.path.join(_FOLDER, "libheadwater_native.so")
    try:
        lib = ctypes.CDLL(path)
    except OSError as error:
        raise ImportError(f"headwater: {path} cannot be loaded ({error}); install the package with `pip install .`") from error
    lib.headwater_version.restype = ctypes.c_char_p
    lib.headwater_arrays_error.restype = ctypes.c_char_p
    lib.headwater_arrays_record_bytes.restype = ctypes.c_int64
    pointer, i32, i64 = ctypes.POINTER, ctypes.c_int32, ctypes.c_int64
    bounds = [pointer(i64), i32, pointer(Pool)]
    lib.headwater_arrays_bounds.argtypes = [pointer(Call), pointer(i64), pointer(i32)]
    lib.headwater_arrays_plan_bytes.argtypes = [*bounds, pointer(i64), pointer(i64)]
    lib.headwater_arrays_kernel.argtypes = [*bounds, ctypes.c_char_p, i32]
    lib.headwater_arrays_schedule.argtypes = [pointer(Call), *bounds, Bytes, ctypes.c_void_p]
    lib.headwater_arrays_run.argtypes = [pointer(Call), *bounds, Bytes, Bytes, ctypes.c_void_p]
    lib.headwater_arrays_check.argtypes = [*bounds, Bytes, ctypes.c_void_p]
    lib.headwater_arrays_merge.argtypes = [pointer(Array)] * 6
    source = [pointer(Array), i32, pointer(i64), i32, pointer(ctypes.c_double)]
    lib.headwater_arrays_append.argtypes = [*source, *[pointer(Array)] * 4, i32]
    lib.headwater_arrays_gather.argtypes = [*source, *[pointer(Array)] * 3]
    lib.headwater_arrays_record_bytes.argtypes = [i32, i32, pointer(i64)]
    return lib


lib = _load()
version = lib.headwater_version().decode()


def check(status):
    if status != 0:
        raise Error("headwater: " + lib.headwater_arrays_error().decode())


class Format:
    """One record format by its name in docs/formats.md."""

    __slots__ = ("index", "name", "fixed_width", "takes_scale", "scales_apart", "planar")

    def __init__(self, index, line):
        self.index = index
        self.name, fixed, takes, apart, planar = line.split()
        self.fixed_width = int(fixed)
        self.takes_scale, self.scales_apart, self.planar = takes == "1", apart == "1", planar == "1"

    def record_bytes(self, width):
        """(bytes of a record, bytes of its block scales that are held apart)"""
        apart = ctypes.c_int64()
        row = lib.headwater_arrays_record_bytes(self.index, width, ctypes.byref(apart))
        if row < 0:
            raise Error(f"headwater: width = {width}: not one that {self.name} takes")
        return row, apart.value


def _formats():
    found, line = {}, ctypes.create_string_buffer(256)
    while lib.headwater_arrays_format(len(found), line, 256):
        entry = Format(len(found), line.value.decode())
        found[entry.name] = entry
    return found


FORMATS = _formats()
_ALIASES = {"fp32": "f32", "float32": "f32", "fp16": "f16", "float16": "f16", "bfloat16": "bf16", "fp8": "e4m3", "fp8_e4m3": "e4m3", "float8_e4m3fn": "e4m3", "fp8_e5m2": "e5m2", "float8_e5m2": "e5m2"}


def format_of(name):
    entry = FORMATS.get(_ALIASES.get(name, name))
    if entry is None:
        raise Error(f"headwater: format = {name!r}: must be one of {', '.join(FORMATS)}")
    return entry


def backends():
    """[{name, built, usable, detail}]: what this build and machine can run."""
    rows, line = [], ctypes.create_string_buffer(512)
    while lib.headwater_arrays_backend(len(rows), line, 512):
        name, built, usable, detail = line.value.decode().split("\t")
        rows.append({"name": name, "built": built == "1", "usable": usable == "1", "detail": detail})
    return rows


def array_of(a):
    """A numpy array as the library sees it; the array must outlive the call."""
    record = Array()
    record.data = a.ctypes.data
    record.type = TYPES.get(a.dtype.name, 101)
    record.ndim = a.ndim
    item = a.dtype.itemsize
    for i in range(min(a.ndim, _MAX_DIMS)):
        if a.strides[i] % item:
            raise Error(f"headwater: stride({i}) = {a.strides[i]} bytes: must be a multiple of the element's {item}")
        record.shape[i] = a.shape[i]
        record.strides[i] = a.strides[i] // item
    return record


def _ints(values):
    return (ctypes.c_int64 * len(values))(*values)


def _doubles(values):
    return (ctypes.c_double * len(values))(*values)


def _reference(a):
    return None if a is None else ctypes.pointer(array_of(a))


class NumpyCall:
    """Keeps the ctypes of one call alive."""

    def __init__(self, q, tensors, descriptor, numbers, out=None, lse=None):
        self.arrays = (Array * len(tensors))(*[array_of(t) for t in tensors])
        self.ints, self.doubles = _ints(descriptor), _doubles(numbers)
        self.keep = (q, tensors, out, lse)
        self.call = Call(_reference(q), self.arrays, len(tensors), self.ints, len(descriptor), self.doubles, len(numbers), _reference(out), _reference(lse))

    def bounds(self):
        room, count = (ctypes.c_int64 * 512)(), ctypes.c_int32(512)
        check(lib.headwater_arrays_bounds(ctypes.byref(self.call), room, ctypes.byref(count)))
        return list(room[: count.value])

    def schedule(self, bounds, buffer):
        check(lib.headwater_arrays_schedule(ctypes.byref(self.call), _ints(bounds), len(bounds), None, _bytes(buffer), None))

    def run(self, bounds, schedule, scratch):
        check(lib.headwater_arrays_run(ctypes.byref(self.call), _ints(bounds), len(bounds), None, _bytes(schedule), _bytes(scratch), None))


def _bytes(a):
    return Bytes(a.ctypes.data, a.nbytes)


def plan_bytes(bounds, workers=0):
    """(schedule bytes, scratch bytes) of a plan of these bounds."""
    schedule, scratch = ctypes.c_int64(), ctypes.c_int64()
    pool = Pool(None, None, workers)
    check(lib.headwater_arrays_plan_bytes(_ints(bounds), len(bounds), ctypes.byref(pool) if workers else None, ctypes.byref(schedule), ctypes.byref(scratch)))
    return schedule.value, scratch.value


def plan_kernel(bounds, workers=0):
    name = ctypes.create_string_buffer(128)
    pool = Pool(None, None, workers)
    check(lib.headwater_arrays_kernel(_ints(bounds), len(bounds), ctypes.byref(pool) if workers else None, name, 128))
    return name.value.decode()


def check_schedule(bounds, buffer):
    check(lib.headwater_arrays_check(_ints(bounds), len(bounds), None, _bytes(buffer), None))


def merge(a, lse_a, b, lse_b, out, lse):
    check(lib.headwater_arrays_merge(*[_reference(x) for x in (a, lse_a, b, lse_b, out, lse)]))


def append(tensors, source, numbers, k, k_tail, v, slots, rule):
    arrays = (Array * len(tensors))(*[array_of(t) for t in tensors])
    check(lib.headwater_arrays_append(arrays, len(tensors), _ints(source), len(source), _doubles(numbers), _reference(k), _reference(k_tail), _reference(v), _reference(slots), rule))


def gather(tensors, source, numbers, slots, k, v):
    arrays = (Array * len(tensors))(*[array_of(t) for t in tensors])
    check(lib.headwater_arrays_gather(arrays, len(tensors), _ints(source), len(source), _doubles(numbers), _reference(slots), _reference(k), _reference(v)))
