// Helpers of validation: messages that name field, value and rule, and products that cannot overflow.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "headwater/problem.h"

namespace headwater::check {

__extension__ typedef __int128 Int128;  // NOLINT(modernize-use-using): __extension__ takes a declaration

// Offsets of one tensor stay below this many bytes or elements: any element size and any sum of a few of them fit in 64 bits.
inline constexpr int64_t kMaxSpan = int64_t{1} << 58;

// Names a field lazily: messages are built only for a refusal, since run() validates at every step.
inline constexpr int32_t kCache = -2;
struct Where {
  int32_t source = -1;         // "kv[source]."; kCache: "cache."
  const char* part = nullptr;  // "k.", "v."
};
[[nodiscard]] std::string field(Where at, std::string_view name);
[[nodiscard]] std::string element(std::string_view name, int64_t index);  // "name[index]"

[[nodiscard]] std::string text(int64_t value);
[[nodiscard]] std::string text(double value);
[[nodiscard]] std::string text(Int128 value);
[[nodiscard]] std::string text(const void* pointer);  // "null" or hexadecimal
[[nodiscard]] std::string text(Type type);            // its name, or "Type(77)"
[[nodiscard]] std::string text(Format format);
inline std::string text(std::string_view value) { return std::string(value); }
inline std::string text(int32_t value) { return text(int64_t{value}); }
inline std::string text(float value) { return text(static_cast<double>(value)); }

// "field = value: rule"
[[nodiscard]] Status refuse(StatusCode code, std::string_view field, std::string_view value, std::string_view rule);
template <class V>
[[nodiscard]] Status bad(std::string_view field, const V& value, std::string_view rule) {
  return refuse(StatusCode::kInvalid, field, text(value), rule);
}
template <class V>
[[nodiscard]] Status bad(Where at, std::string_view name, const V& value, std::string_view rule) {
  return refuse(StatusCode::kInvalid, field(at, name), text(value), rule);
}

[[nodiscard]] bool aligned(const void* pointer, int64_t alignment);
// A 4-byte array that must be there when `needed`; alignment is checked whenever it is given.
[[nodiscard]] Status check_array(Where at, const char* name, const void* data, bool needed, const char* why, int64_t alignment = 4);

// One axis of a strided tensor, outermost first in a list. `stride` starts as given (or kDense) and is resolved in place.
struct Axis {
  const char* name;  // of the stride field
  int64_t n;
  int64_t* stride;
  int64_t dense = kDense;  // packed stride where it is not item * product of the inner axes (planar pages)
};
// Fills dense strides and checks that no offset overflows. A stride may be left dense only when the axes inside it are packed;
// otherwise nobody could say what it should be. `item` is the size of the innermost element, `multiple` what strides divide by.
[[nodiscard]] Status resolve_strides(Where at, std::span<const Axis> axes, int64_t item, int64_t multiple);
// Outputs: no two elements share memory.
[[nodiscard]] Status check_disjoint(Where at, std::span<const Axis> axes, int64_t item);

}  // namespace headwater::check

// Leaves the function with the first Status that is not ok.
#define HEADWATER_TRY(expression)                                                           \
  do {                                                                                      \
    if (::headwater::Status try_status = (expression); !try_status.ok()) return try_status; \
  } while (false)
