// Names of element types and KV record formats, and what each record costs in bytes.
// The byte meaning of every record is data: the table in src/formats/record.cc (drawn in docs/formats.md).
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "headwater/status.h"

namespace headwater {

// Scalar types of queries, outputs, stored elements and block scales.
enum class Type : uint8_t {
  kNone = 0,
  kF32,
  kF16,
  kBf16,
  kE4m3,  // OCP e4m3fn: bias 7, max 448, no infinity, NaN = 0x7f and 0xff
  kE5m2,  // OCP e5m2: bias 15, max 57344, IEEE infinities and NaN
  kI8,
  kE2m1,  // 0 .5 1 1.5 2 3 4 6 and their negatives; two per byte, the even column in the low nibble
  kE8m0,  // scale 2^(byte - 127); 255 = NaN
  kI32,
  kI64,
};

// KV record formats. Widths are free unless a record fixes them.
enum class Format : uint8_t {
  kF32 = 0,
  kF16,
  kBf16,
  kE4m3,           // k_scale / v_scale: per tensor or per KV head
  kE5m2,           // the same
  kInt8,           // int8, one float32 scale per token and head, held apart
  kQ8_0,           // GGUF's q8_0: blocks of 32 int8 behind one fp16 scale, in the row. NOLINT(readability-identifier-naming)
  kFp8Ds656,       // DeepSeek-V3.2: 512 e4m3, 4 float32 scales, 64 bf16 in 656 bytes (width 576)
  kFp8Ds584,       // DeepSeek-V4: 448 e4m3, 64 bf16; 7 e8m0 scales planar at the page's end (width 512)
  kMxfp4,          // OCP MXFP4: e2m1 x 32 per e8m0 scale, scales held apart
  kNvfp4,          // e2m1 x 16 per e4m3 scale, scales held apart; k_scale / v_scale is the global factor
  kMxfp4RopeBf16,  // (width - 64) e2m1 with e8m0 scales in the row, then 64 bf16
  kNvfp4Ds352,     // vLLM's nvfp4_ds_mla: 512 e2m1, 64 unscaled e4m3, 32 permuted e4m3 scales (width 576)
  kNvfp4Ds384,     // FlashInfer's DeepSeek-V4 NVFP4: 448 e2m1, 64 bf16; 28 e4m3 scales planar at the page's end (width 512)
  kNvfp4Ds432,     // 512 e2m1, 32 e4m3 scales, 16 bytes of padding, 64 bf16 (width 576)
};
inline constexpr int32_t kNumFormats = 15;

// How an encoder chooses a power-of-two block scale from the block's largest magnitude.
enum class BlockScaleRule : uint8_t {
  kRoundUp = 0,  // 2^ceil(log2(amax / max)): never saturates. DeepSeek, vLLM; the default
  kEven,         // amax rounded to the element's precision first. AITER
  kFloor,        // floor(log2 amax) - emax. OCP MX v1.0
};

// What one record is, without its byte layout.
struct FormatInfo {
  Format format;
  std::string_view name;  // "bf16", "fp8_ds_656", ... : the name used by files and the command line
  int32_t fixed_width;    // 0 = any width from 1 to 576
  bool takes_scale;       // a k_scale / v_scale is legal (also NVFP4's global factor)
  bool scales_apart;      // block scales live in a tensor of their own (KvTensor::scales)
  bool planar;            // block scales stand at the end of each page: paged storage only
  bool is_float;          // f32, f16, bf16
};

[[nodiscard]] std::span<const FormatInfo> all_formats();
[[nodiscard]] const FormatInfo& format_info(Format format);
// Accepts the table's names and the aliases fp16, fp32, fp8 (= e4m3), fp8_e4m3, fp8_e5m2.
[[nodiscard]] std::optional<Format> format_by_name(std::string_view name);
[[nodiscard]] std::string_view type_name(Type type);
[[nodiscard]] int32_t type_bits(Type type);  // 4 for e2m1, 0 for kNone

// Bytes of one record of `width` columns, padding inside the row included, planar scales excluded.
[[nodiscard]] int64_t record_row_bytes(Format format, int32_t width);
// Bytes of the separate block scales of one record (0 unless scales_apart).
[[nodiscard]] int64_t record_scale_bytes(Format format, int32_t width);
// Dense bytes of a page of `page_size` records of one head, planar scales and stride padding included.
[[nodiscard]] int64_t record_page_bytes(Format format, int32_t width, int32_t page_size);

}  // namespace headwater
