#!/usr/bin/env python3
"""Writes the golden files of this folder: bytes and what they must decode to, values and what they must encode to.

The layouts and rules below were written down from docs/formats.md's sources, with numpy and ml_dtypes doing the arithmetic. Nothing of the
library is imported, so a mistake in its codecs or its table cannot hide here.

    make_golden.py [OUTPUT_FOLDER]      default: the folder of this script

A file is "HWGOLD01", a count of cases, and per case a count of fields; a field is name length, name, byte length, bytes (all lengths u32,
little-endian). Integers are int64; arrays are raw little-endian.
"""
import pathlib
import struct
import sys

import ml_dtypes
import numpy as np

F32 = np.float32
E4M3, E5M2, E2M1, E8M0 = ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2, ml_dtypes.float4_e2m1fn, ml_dtypes.float8_e8m0fnu
FLT_MAX = np.finfo(np.float32).max
TINY = np.finfo(np.float32).tiny  # 2^-126
PAGE_SIZES = (2, 64, 256)
RULES = ("round_up", "even", "floor")


# ---------------------------------------------------------------------------------------------------------------- files
def field_bytes(value):
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, (int, np.integer)):
        return struct.pack("<q", int(value))
    return np.ascontiguousarray(value).tobytes()


def write_cases(path, cases):
    out = [b"HWGOLD01", struct.pack("<I", len(cases))]
    for case in cases:
        out.append(struct.pack("<I", len(case)))
        for name, value in case.items():
            data = field_bytes(value)
            out.append(struct.pack("<I", len(name)) + name.encode() + struct.pack("<I", len(data)) + data)
    path.write_bytes(b"".join(out))


def canonical_bits(values):
    bits = np.ascontiguousarray(values, dtype=F32).view(np.uint32).copy()
    bits[np.isnan(values)] = 0x7FC00000
    return bits


def row_hashes(values):
    """FNV-1a over the 32-bit words of each row, NaN made one."""
    bits = canonical_bits(values).astype(np.uint64)
    state = np.full(bits.shape[0], 0xCBF29CE484222325, np.uint64)
    for column in range(bits.shape[1]):
        state = (state ^ bits[:, column]) * np.uint64(0x100000001B3)
    return state


# ------------------------------------------------------------------------------------------------------------- elements
def to_floats(codes, element):
    codes = np.asarray(codes)
    if element == "f32":
        return codes.view(np.float32)
    if element == "f16":
        return codes.view(np.float16).astype(F32)
    if element == "bf16":
        return codes.view(ml_dtypes.bfloat16).astype(F32)
    if element == "i8":
        return codes.view(np.int8).astype(F32)
    return codes.view({"e4m3": E4M3, "e5m2": E5M2, "e2m1": E2M1, "e8m0": E8M0}[element]).astype(F32)


def to_codes(values, element):
    """Round to nearest even; f16 and bf16 overflow to infinity, e4m3, e5m2 and e2m1 saturate; one NaN code each, 0 for e2m1."""
    values = np.asarray(values, dtype=F32)
    nan = np.isnan(values)
    if element == "f32":
        return values.view(np.uint32)
    if element == "f16":
        codes, nan_code = values.astype(np.float16).view(np.uint16), 0x7E00
    elif element == "bf16":
        codes, nan_code = values.astype(ml_dtypes.bfloat16).view(np.uint16), 0x7FC0
    elif element == "e4m3":
        codes, nan_code = np.clip(values, -448, 448).astype(E4M3).view(np.uint8), 0x7F
    elif element == "e5m2":
        codes, nan_code = np.clip(values, -57344, 57344).astype(E5M2).view(np.uint8), 0x7E
    else:
        codes, nan_code = np.clip(values, -6, 6).astype(E2M1).view(np.uint8), 0
    codes = codes.copy()
    codes[nan] = nan_code
    return codes


CODE_TYPE = {"f32": np.uint32, "f16": np.uint16, "bf16": np.uint16}
CODE_COUNT = {"e4m3": 256, "e5m2": 256, "e2m1": 16, "e8m0": 256, "f16": 65536, "bf16": 65536}


def around(values):
    """The values, their float32 neighbours, and all negatives."""
    values = np.asarray(values, dtype=F32)
    near = np.concatenate([values, np.nextafter(values, F32(np.inf)), np.nextafter(values, F32(-np.inf))])
    return np.concatenate([near, -near])


def element_inputs(element, rng):
    """Every value and every midpoint of neighbouring values (a sample of them for 16-bit types), their neighbours, and the odd ones."""
    finite = to_floats(np.arange(CODE_COUNT[element], dtype=CODE_TYPE.get(element, np.uint8)), element)
    finite = np.unique(np.abs(finite[np.isfinite(finite)]))
    if finite.size > 1000:
        finite = np.unique(np.concatenate([finite[:40], finite[-40:], rng.choice(finite, 200)]))
        step = np.unique(to_floats(to_codes(finite, element) + np.array(1, CODE_TYPE[element]), element))
        finite = np.union1d(finite, step[np.isfinite(step)])
    midpoints = ((finite[1:].astype(np.float64) + finite[:-1]) / 2).astype(F32)
    odd = np.array([0, TINY, TINY / 2, 1e-45, FLT_MAX, np.inf, np.nan, 448, 464, 465, 480, 57344, 61440, 65504, 65519, 65520, 5, 7, 8], F32)
    random_bits = rng.integers(0, 2**32, 400, dtype=np.uint32).view(F32)
    return np.concatenate([around(finite), around(midpoints), odd, -odd, random_bits])


def element_cases(rng):
    cases = []
    for element, count in CODE_COUNT.items():
        codes = np.arange(count, dtype=CODE_TYPE.get(element, np.uint8))
        values = to_floats(codes, element)
        case = {"kind": "element", "type": element}
        if count <= 256:
            case["values"] = values
        else:
            case["hashes"] = row_hashes(values.reshape(-1, 256))
        if element == "e8m0":
            inputs = np.array([2.0**e * m for e in range(-126, 127) for m in (1, 1.25, 1.4375, 1.5, 1.5625, 1.9375)], F32)
            case["inputs"], case["codes"] = inputs, inputs.astype(E8M0).view(np.uint8)
        else:
            inputs = element_inputs(element, rng)
            case["inputs"], case["codes"] = inputs, to_codes(inputs, element)
        cases.append(case)
    return cases


# --------------------------------------------------------------------------------------------------------- block scales
def power_exponent(amax, element, rule):
    """Exponent of the power-of-two scale of each block. amax: float32, finite."""
    largest, emax, step = {"e2m1": (6.0, 2, 0x200000), "e4m3": (448.0, 8, 0x80000)}[element]
    exact = amax.astype(np.float64)
    if rule == "round_up":
        mantissa, exponent = np.frexp(exact / largest)  # mantissa in [0.5, 1)
        exponent = np.where(mantissa > 0.5, exponent, exponent - 1)
    elif rule == "even":
        field = (np.ascontiguousarray(amax, F32).view(np.uint32) + np.uint32(step)) >> np.uint32(23)  # 255 above the largest float
        exponent = field.astype(np.int64) - 127 - emax
    else:
        exponent = np.frexp(exact)[1] - 1 - emax
    return np.clip(np.where(exact == 0, -127, exponent), -127, 127)


def finite_amax(blocks):
    """[..., n] -> largest magnitude; NaN left out, infinities as the largest float."""
    return np.minimum(np.nanmax(np.abs(np.where(np.isnan(blocks), F32(0), blocks)), axis=-1), F32(FLT_MAX)).astype(F32)


def power_of_two_blocks(blocks, element, rule):
    """-> (codes [..., n], e8m0 bytes [...])"""
    amax = finite_amax(blocks)
    if element == "e4m3":
        amax = np.maximum(amax, F32(1e-4))
    elif rule == "round_up":
        amax = np.maximum(amax, F32(6) * TINY)
    exponent = power_exponent(amax, element, rule)
    step = np.ldexp(F32(1), exponent).astype(F32)
    codes = to_codes(blocks / step[..., None], element)
    scale = (exponent + 127).astype(np.uint8)
    if element == "e2m1":
        nan = np.isnan(blocks).any(axis=-1)
        codes[nan] = 0
        scale[nan] = 255
    return codes, scale


def nvfp4_blocks(blocks, g):
    amax = finite_amax(blocks)
    scale = to_codes(amax / (F32(6) * np.abs(F32(g))), "e4m3")
    step = to_floats(scale, "e4m3") * F32(g)
    dead = step == 0
    codes = to_codes(blocks / np.where(dead, F32(1), step)[..., None], "e2m1")
    nan = np.isnan(blocks).any(axis=-1)
    codes[dead | nan] = 0
    scale[nan] = 0x7F
    return codes, scale


def int8_blocks(blocks):
    amax = finite_amax(blocks)
    step = (amax / F32(127)).astype(F32)
    nan = np.isnan(blocks).any(axis=-1)
    quotient = blocks / np.where(step == 0, F32(1), step)[..., None]
    codes = np.clip(np.rint(np.where(np.isnan(quotient), F32(0), quotient)), -127, 127).astype(np.int8)
    codes[nan | (step == 0)] = 0
    return codes.view(np.uint8), np.where(nan, F32(np.nan), step).astype(F32)


def q8_blocks(blocks):
    step = np.minimum((finite_amax(blocks) / F32(127)).astype(F32), F32(65504))
    nan = np.isnan(blocks).any(axis=-1)
    scale = step.astype(np.float16).view(np.uint16).copy()
    product = (blocks * (F32(1) / np.where(step == 0, F32(1), step))[..., None]).astype(np.float64)
    product = np.where(np.isnan(product), 0.0, product)
    codes = np.clip(np.trunc(product + np.copysign(0.5, product)), -127, 127).astype(np.int8)
    codes[nan | (scale == 0)] = 0
    scale[nan] = 0x7E00
    return codes.view(np.uint8), scale


# --------------------------------------------------------------------------------------------------------------- records
def pack_nibbles(codes):
    """[..., n] codes -> [..., ceil(n / 2)] bytes, even columns low."""
    if codes.shape[-1] % 2:
        codes = np.concatenate([codes, np.zeros(codes.shape[:-1] + (1,), np.uint8)], axis=-1)
    return (codes[..., 0::2] | (codes[..., 1::2] << 4)).astype(np.uint8)


def unpack_nibbles(data, count):
    return np.stack([data & 15, data >> 4], axis=-1).reshape(data.shape[:-1] + (-1,))[..., :count]


def as_bytes(array):
    array = np.ascontiguousarray(array)
    return array.view(np.uint8).reshape(array.shape[:-1] + (-1,))


def from_bytes(data, dtype):
    return np.ascontiguousarray(data).view(dtype)


def pad_columns(values, block):
    short = -values.shape[-1] % block
    return np.pad(values, [(0, 0)] * (values.ndim - 1) + [(0, short)])


def in_blocks(values, block):
    return pad_columns(values, block).reshape(values.shape[:-1] + (-1, block))


def spread(scales, block, count):
    return np.repeat(scales, block, axis=-1)[..., :count]


def ds352_positions():
    return [8 * (s & 3) + (s >> 2) for s in range(32)]


class Record:
    """A format at one width: row bytes [rows, row_bytes] and scale bytes [rows, scale_bytes] (planar or apart) <-> float32 rows."""

    def __init__(self, name, width, row_bytes, decode, encode, scale_bytes=0, planar=False, page_align=1, scaled=False, rules=False,
                 scale_size=1, row_scales=None):
        self.name, self.width, self.row_bytes, self.decode, self.encode = name, width, row_bytes, decode, encode
        self.scale_bytes, self.planar, self.page_align = scale_bytes, planar, page_align
        self.scaled, self.rules, self.scale_size = scaled, rules, scale_size
        self.row_scales = row_scales  # slice of byte-wide block scales inside the row

    def dense_page_bytes(self, page_size):
        raw = page_size * (self.row_bytes + (self.scale_bytes if self.planar else 0))
        return -(-raw // self.page_align) * self.page_align


def plain(name, element, width, scaled=False):
    code_type = CODE_TYPE.get(element, np.uint8)

    def decode(rows, scales, g):
        values = to_floats(from_bytes(rows, code_type), element)
        return values * F32(g) if scaled else values

    def encode(values, g, rule):
        return as_bytes(to_codes(values / F32(g) if scaled else values, element)), None

    return Record(name, width, width * np.dtype(code_type).itemsize, decode, encode, scaled=scaled)


def int8(width):
    def decode(rows, scales, g):
        return to_floats(rows, "i8") * from_bytes(scales, F32) * F32(g)

    def encode(values, g, rule):
        codes, scale = int8_blocks(values / F32(g))
        return codes, as_bytes(scale[:, None])

    return Record("int8", width, width, decode, encode, scale_bytes=4, scaled=True, scale_size=4)


def q8_0(width):
    blocks = -(-width // 32)

    def decode(rows, scales, g):
        cells = rows.reshape(rows.shape[0], blocks, 34)
        scale = to_floats(from_bytes(cells[:, :, :2], np.uint16), "f16")
        return (to_floats(cells[:, :, 2:].copy(), "i8") * scale).reshape(rows.shape[0], -1)[:, :width] * F32(g)

    def encode(values, g, rule):
        codes, scale = q8_blocks(in_blocks(values / F32(g), 32))
        return np.concatenate([as_bytes(scale[..., None]), codes], axis=-1).reshape(values.shape[0], -1), None

    return Record("q8_0", width, 34 * blocks, decode, encode, scaled=True)


def fp8_ds_656():
    def decode(rows, scales, g):
        tiles = spread(from_bytes(rows[:, 512:528], F32), 128, 512)
        return np.concatenate([to_floats(rows[:, :512], "e4m3") * tiles, to_floats(from_bytes(rows[:, 528:], np.uint16), "bf16")], axis=1)

    def encode(values, g, rule):
        codes, scale = power_of_two_blocks(in_blocks(values[:, :512], 128), "e4m3", rule)
        powers = np.ldexp(F32(1), scale.astype(np.int32) - 127).astype(F32)
        return np.concatenate([codes.reshape(-1, 512), as_bytes(powers), as_bytes(to_codes(values[:, 512:], "bf16"))], axis=1), None

    return Record("fp8_ds_656", 576, 656, decode, encode, rules=True)


def fp8_ds_584():
    def decode(rows, scales, g):
        tiles = spread(to_floats(scales[:, :7].copy(), "e8m0"), 64, 448)
        return np.concatenate([to_floats(rows[:, :448], "e4m3") * tiles, to_floats(from_bytes(rows[:, 448:], np.uint16), "bf16")], axis=1)

    def encode(values, g, rule):
        codes, scale = power_of_two_blocks(in_blocks(values[:, :448], 64), "e4m3", rule)
        rows = np.concatenate([codes.reshape(-1, 448), as_bytes(to_codes(values[:, 448:], "bf16"))], axis=1)
        return rows, np.pad(scale, ((0, 0), (0, 1)))

    return Record("fp8_ds_584", 512, 576, decode, encode, scale_bytes=8, planar=True, page_align=576, rules=True)


def mxfp4(width):
    blocks = -(-width // 32)

    def decode(rows, scales, g):
        return to_floats(unpack_nibbles(rows, width), "e2m1") * spread(to_floats(scales, "e8m0"), 32, width) * F32(g)

    def encode(values, g, rule):
        codes, scale = power_of_two_blocks(in_blocks(values / F32(g), 32), "e2m1", rule)
        return pack_nibbles(codes.reshape(values.shape[0], -1)[:, :width]), scale

    return Record("mxfp4", width, -(-width // 2), decode, encode, scale_bytes=blocks, scaled=True, rules=True)


def nvfp4(width):
    blocks = -(-width // 16)

    def decode(rows, scales, g):
        return to_floats(unpack_nibbles(rows, width), "e2m1") * spread(to_floats(scales, "e4m3"), 16, width) * F32(g)

    def encode(values, g, rule):
        codes, scale = nvfp4_blocks(in_blocks(values, 16), g)
        return pack_nibbles(codes.reshape(values.shape[0], -1)[:, :width]), scale

    return Record("nvfp4", width, -(-width // 2), decode, encode, scale_bytes=blocks, scaled=True)


def mxfp4_rope_bf16(width):
    latent = width - 64
    packed, blocks = -(-latent // 2), -(-latent // 32)
    rope = -(-(packed + blocks) // 16) * 16

    def decode(rows, scales, g):
        tiles = spread(to_floats(rows[:, packed:packed + blocks].copy(), "e8m0"), 32, latent)
        nope = to_floats(unpack_nibbles(rows[:, :packed], latent), "e2m1") * tiles
        return np.concatenate([nope, to_floats(from_bytes(rows[:, rope:], np.uint16), "bf16")], axis=1)

    def encode(values, g, rule):
        codes, scale = power_of_two_blocks(in_blocks(values[:, :latent], 32), "e2m1", rule)
        head = np.concatenate([pack_nibbles(codes.reshape(values.shape[0], -1)[:, :latent]), scale], axis=1)
        head = np.pad(head, ((0, 0), (0, rope - head.shape[1])))
        return np.concatenate([head, as_bytes(to_codes(values[:, latent:], "bf16"))], axis=1), None

    return Record("mxfp4_rope_bf16", width, rope + 128, decode, encode, rules=True,
                  row_scales=slice(packed, packed + blocks))


def nvfp4_ds_352():
    order = ds352_positions()

    def decode(rows, scales, g):
        tiles = spread(to_floats(rows[:, 320:][:, order], "e4m3"), 16, 512)
        return np.concatenate([to_floats(unpack_nibbles(rows[:, :256], 512), "e2m1") * tiles, to_floats(rows[:, 256:320], "e4m3")], axis=1)

    def encode(values, g, rule):
        codes, scale = nvfp4_blocks(in_blocks(values[:, :512], 16), 1)
        permuted = np.zeros_like(scale)
        permuted[:, order] = scale
        return np.concatenate([pack_nibbles(codes.reshape(-1, 512)), to_codes(values[:, 512:], "e4m3"), permuted], axis=1), None

    return Record("nvfp4_ds_352", 576, 352, decode, encode, row_scales=slice(320, 352))


def nvfp4_ds_384():
    def decode(rows, scales, g):
        tiles = spread(to_floats(scales[:, :28].copy(), "e4m3"), 16, 448)
        nope = to_floats(unpack_nibbles(rows[:, :224], 448), "e2m1") * tiles
        return np.concatenate([nope, to_floats(from_bytes(rows[:, 224:], np.uint16), "bf16")], axis=1)

    def encode(values, g, rule):
        codes, scale = nvfp4_blocks(in_blocks(values[:, :448], 16), 1)
        rows = np.concatenate([pack_nibbles(codes.reshape(-1, 448)), as_bytes(to_codes(values[:, 448:], "bf16"))], axis=1)
        return rows, np.pad(scale, ((0, 0), (0, 4)))

    return Record("nvfp4_ds_384", 512, 352, decode, encode, scale_bytes=32, planar=True)


def nvfp4_ds_432():
    def decode(rows, scales, g):
        tiles = spread(to_floats(rows[:, 256:288].copy(), "e4m3"), 16, 512)
        nope = to_floats(unpack_nibbles(rows[:, :256], 512), "e2m1") * tiles
        return np.concatenate([nope, to_floats(from_bytes(rows[:, 304:], np.uint16), "bf16")], axis=1)

    def encode(values, g, rule):
        codes, scale = nvfp4_blocks(in_blocks(values[:, :512], 16), 1)
        rope = as_bytes(to_codes(values[:, 512:], "bf16"))
        return np.concatenate([pack_nibbles(codes.reshape(-1, 512)), scale, np.zeros((values.shape[0], 16), np.uint8), rope], axis=1), None

    return Record("nvfp4_ds_432", 576, 432, decode, encode, row_scales=slice(256, 288))


# Widths of the small pages, of the large pages, and of the encoder rows.
RECORDS = [
    ([plain("f32", "f32", w) for w in (5, 1, 3)], [plain("f32", "f32", 33)]),
    ([plain("f16", "f16", w) for w in (65, 64, 7)], [plain("f16", "f16", 193)]),
    ([plain("bf16", "bf16", w) for w in (64, 1, 33)], [plain("bf16", "bf16", 193)]),
    ([plain("e4m3", "e4m3", w, True) for w in (576, 64, 13)], [plain("e4m3", "e4m3", 576, True)]),
    ([plain("e5m2", "e5m2", w, True) for w in (128, 64, 13)], [plain("e5m2", "e5m2", 576, True)]),
    ([int8(w) for w in (128, 64, 9)], [int8(576), int8(1)]),
    ([q8_0(w) for w in (576, 64, 45)], [q8_0(576), q8_0(33)]),
    ([fp8_ds_656()], [fp8_ds_656()]),
    ([fp8_ds_584()], [fp8_ds_584()]),
    ([mxfp4(w) for w in (576, 128, 63)], [mxfp4(576), mxfp4(17)]),
    ([nvfp4(w) for w in (512, 128, 63)], [nvfp4(576), nvfp4(23)]),
    ([mxfp4_rope_bf16(w) for w in (576, 128, 65)], [mxfp4_rope_bf16(576), mxfp4_rope_bf16(97)]),
    ([nvfp4_ds_352()], [nvfp4_ds_352()]),
    ([nvfp4_ds_384()], [nvfp4_ds_384()]),
    ([nvfp4_ds_432()], [nvfp4_ds_432()]),
]


# ---------------------------------------------------------------------------------------------------------------- decode
def random_scales(record, shape, rng):
    if record.scale_size == 4:  # any float32 bits, a third of them ordinary
        bits = rng.integers(0, 2**32, shape[:-1] + (shape[-1] // 4,), dtype=np.uint32)
        ordinary = rng.standard_normal(bits.shape).astype(F32).view(np.uint32)
        return np.where(rng.random(bits.shape) < 0.33, ordinary, bits).astype(np.uint32).view(np.uint8)
    return all_codes(shape, rng)


def all_codes(shape, rng):
    """Random bytes in which every code comes up about equally often."""
    count = int(np.prod(shape))
    return np.concatenate([rng.permutation(256) for _ in range(-(-count // 256))])[:count].astype(np.uint8).reshape(shape)


def decode_case(record, page_size, rng, seen):
    """Pages of random bytes in padded strides. All memory outside of records is 0x7f or 0xff, which most types read as NaN."""
    num_pages = 3 if page_size == 2 else 1
    row_pad = {2: 16, 64: 0, 256: 5}[page_size] if not record.planar else 0
    row_stride = record.row_bytes + row_pad
    page_pad = {2: 576, 64: 0, 256: record.page_align * 7}[page_size]
    page_stride = page_size * row_pad + record.dense_page_bytes(page_size) + page_pad
    g = [F32(1), F32(0.0371), F32(-3.0), F32(1e-38), F32(3e38)][rng.integers(0, 5)] if record.scaled else F32(1)
    if page_size == 256 and record.scaled:
        g = F32(0.0371)
    data = np.full((num_pages, page_stride), 0xFF, np.uint8)
    rows = rng.integers(0, 256, (num_pages, page_size, record.row_bytes), dtype=np.uint8)
    if record.row_scales:
        rows[..., record.row_scales] = all_codes(rows[..., record.row_scales].shape, rng)
    for slot in range(page_size):
        data[:, slot * row_stride:slot * row_stride + record.row_bytes] = rows[:, slot]
    scales = None
    case = {"kind": "decode", "format": record.name, "width": record.width, "page_size": page_size, "num_pages": num_pages,
            "row_bytes": record.row_bytes, "dense_page_bytes": record.dense_page_bytes(page_size),
            "row_stride": row_stride, "page_stride": page_stride}
    if record.scale_bytes:
        scales = random_scales(record, (num_pages, page_size, record.scale_bytes), rng)
    if record.planar:
        for slot in range(page_size):
            at = page_size * record.row_bytes + slot * record.scale_bytes
            data[:, at:at + record.scale_bytes] = scales[:, slot]
    elif scales is not None:
        blocks = record.scale_bytes // record.scale_size
        # [pages, slots, blocks], except that pages of 64 hold it block-major; both padded.
        shape = (num_pages, blocks + 2, page_size + 3) if page_size == 64 else (num_pages, page_size + 1, blocks + 6)
        apart = np.full(shape + (record.scale_size,), 0x7F, np.uint8)
        cells = scales.reshape(num_pages, page_size, blocks, record.scale_size)
        if page_size == 64:
            apart[:, :blocks, :page_size] = cells.transpose(0, 2, 1, 3)
        else:
            apart[:, :page_size, :blocks] = cells
        slot_axis, block_axis = (2, 1) if page_size == 64 else (1, 2)
        case.update(scales=apart, scale_page_stride=apart.strides[0], scale_row_stride=apart.strides[slot_axis],
                    scale_block_stride=apart.strides[block_axis], scale_row_bytes=record.scale_bytes)
    flat = rows.reshape(-1, record.row_bytes)
    values = record.decode(flat, scales.reshape(-1, record.scale_bytes) if scales is not None else None, g)
    assert values.dtype == F32 and values.shape == (flat.shape[0], record.width)
    shown = sorted({0, 1, page_size - 1, num_pages * page_size - 1})
    case.update(data=data, g=np.array([g], F32), hashes=row_hashes(values), shown=np.array(shown, np.int64), values=values[shown])
    if record.scale_size == 1 and record.scale_bytes:
        used = {"fp8_ds_584": 7, "nvfp4_ds_384": 28}.get(record.name)  # without padding
        seen.setdefault(record.name, []).append(scales[..., :used].ravel())
    elif record.row_scales:
        seen.setdefault(record.name, []).append(rows[..., record.row_scales].ravel())
    return case


def require_all_codes(seen):
    for name, drawn in seen.items():
        assert np.unique(np.concatenate(drawn)).size == 256, name


# ---------------------------------------------------------------------------------------------------------------- encode
def encoder_inputs(rng):
    """[rows, 576]: blocks of every kind, at the edges of every rule."""
    width = 576
    per16 = lambda x: np.repeat(x, 16)[:width]
    normal = lambda: rng.standard_normal(width)
    fp4_ties = np.array([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5, 6])
    rows = [np.zeros(width), -np.zeros(width), normal(), normal() * 2.0**-20, normal() * 1000]
    rows.append(normal() * per16(2.0 ** rng.integers(-140, 120, 36)))
    rows.append(normal() * np.repeat(2.0 ** rng.integers(-140, 120, 18), 32))
    rows.append(normal() * np.repeat(2.0 ** rng.integers(-30, 15, 5), 128)[:width])
    rows.append(normal() * 2.0**-140)
    rows.append(normal() * 2.0**126)
    for odd in (np.nan, np.inf, -np.inf, -np.nan):
        row = normal()
        row[rng.choice(width, 9, replace=False)] = odd
        rows.append(row)
    row = normal()
    row[[3, 200]], row[[7, 300]] = np.nan, np.inf
    rows.append(row)
    # Ties of e2m1 and e4m3, the block's largest fixing the scale to 1.
    row = np.where(rng.random(width) < 0.5, -1, 1) * rng.choice(fp4_ties, width)
    row[::16] = 6
    rows += [row, row * 2.0**-60, row.astype(F32) * (1 + 2.0**-23)]
    steps = np.sort(np.arange(128, dtype=np.uint8).view(E4M3).astype(np.float64)[:127])
    row = rng.choice((steps[1:] + steps[:-1]) / 2, width)
    row[::64] = 448
    rows += [row, row * 2.0**-13]
    # Largest magnitudes of the rules' worked examples, and next to 6, 448 and powers of two.
    worked = np.array([3.9, 4.0, 4.9, 6.0, 6.1, 7.0, 7.9, 3.5, 7.5, 480.0, 448.0, 449.0, 464.0, 496.0], F32)
    edges = np.concatenate([worked, np.nextafter(worked, F32(0)), np.nextafter(worked, F32(1e9))])
    for block in (16, 32, 64, 128):
        row = np.clip(normal() * 0.3, -1, 1)
        row[block // 2::block] = rng.choice(edges, row[block // 2::block].size)
        rows.append(row)
    row = np.zeros(width)
    row[::32] = 2.0 ** np.linspace(-149, 127, 18).round()
    row[5::32] = -row[::32]
    rows.append(row)
    row = np.zeros(width)  # around the floors of tiny blocks
    row[::64] = [1e-4, 9.9e-5, 1.1e-4, 6 * 2.0**-126, 5 * 2.0**-126, 7 * 2.0**-126, 2.0**-149, 1e-10, 448 * 2.0**-22]
    rows.append(row)
    return np.array(rows).astype(F32)


def encode_cases(inputs, rng):
    cases = []
    for small, encoders in RECORDS:
        for record in encoders:
            values = inputs[:, :record.width]
            for rule_index, rule in enumerate(RULES if record.rules else RULES[:1]):
                for g in (F32(1), F32(-2e-5)) if record.scaled and rule_index == 0 else (F32(1),):
                    rows, scales = record.encode(values, g, rule)
                    assert rows.dtype == np.uint8 and rows.shape == (values.shape[0], record.row_bytes), record.name
                    case = {"kind": "encode", "format": record.name, "width": record.width, "rule": rule_index, "g": np.array([g], F32),
                            "count": values.shape[0], "rows": rows}
                    if scales is not None:
                        assert scales.dtype == np.uint8 and scales.shape == (values.shape[0], record.scale_bytes), record.name
                        case.update(scales=scales, scale_row_bytes=record.scale_bytes)
                    cases.append(case)
    return cases


def main():
    folder = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else pathlib.Path(__file__).resolve().parent
    rng = np.random.default_rng(20260101)
    with np.errstate(all="ignore"):
        write_cases(folder / "elements.golden", element_cases(rng))
        seen = {}
        for small, _ in RECORDS:
            cases = [decode_case(small[i % len(small)], page_size, rng, seen) for i, page_size in enumerate(PAGE_SIZES)]
            write_cases(folder / f"{small[0].name}.golden", cases)
        require_all_codes(seen)
        inputs = encoder_inputs(rng)
        write_cases(folder / "encode.golden", [{"kind": "inputs", "count": inputs.shape[0], "inputs": inputs}] + encode_cases(inputs, rng))


if __name__ == "__main__":
    main()
