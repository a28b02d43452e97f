#include "src/core/check.h"

#include <algorithm>
#include <array>
#include <cinttypes>
#include <cstdio>

namespace headwater::check {

std::string field(Where at, std::string_view name) {
  std::string result;
  if (at.source >= 0) result = element("kv", at.source) + ".";
  if (at.source == kCache) result = "cache.";
  if (at.part != nullptr) result += at.part;
  result += name;
  return result;
}

std::string element(std::string_view name, int64_t index) {
  std::string result(name);
  result += '[';
  result += std::to_string(index);
  result += ']';
  return result;
}

std::string text(int64_t value) { return value == kDense ? "dense" : std::to_string(value); }

std::string text(double value) {
  std::array<char, 40> buffer{};
  std::snprintf(buffer.data(), buffer.size(), "%.9g", value);
  return buffer.data();
}

std::string text(Int128 value) {
  if (value == 0) return "0";
  const bool negative = value < 0;
  std::string digits;
  for (; value != 0; value /= 10) {
    const int digit = static_cast<int>(value % 10);
    digits += static_cast<char>('0' + (digit < 0 ? -digit : digit));
  }
  if (negative) digits += '-';
  std::reverse(digits.begin(), digits.end());
  return digits;
}

std::string text(const void* pointer) {
  if (pointer == nullptr) return "null";
  std::array<char, 24> buffer{};
  std::snprintf(buffer.data(), buffer.size(), "0x%" PRIxPTR, reinterpret_cast<uintptr_t>(pointer));
  return buffer.data();
}

std::string text(Type type) {
  if (type > Type::kI64) return "Type(" + std::to_string(static_cast<int>(type)) + ")";
  return type == Type::kNone ? "none" : std::string(type_name(type));
}

std::string text(Format format) {
  const auto code = static_cast<int32_t>(format);
  return code >= kNumFormats ? "Format(" + std::to_string(code) + ")" : std::string(format_info(format).name);
}

Status refuse(StatusCode code, std::string_view field, std::string_view value, std::string_view rule) {
  std::string message(field);
  message += " = ";
  message += value;
  message += ": ";
  message += rule;
  return {code, std::move(message)};
}

bool aligned(const void* pointer, int64_t alignment) {
  return reinterpret_cast<uintptr_t>(pointer) % static_cast<uintptr_t>(alignment) == 0;
}

Status check_array(Where at, const char* name, const void* data, bool needed, const char* why, int64_t alignment) {
  if (data == nullptr) return needed ? bad(at, name, data, std::string("must be given: ") + why) : Status();
  if (!aligned(data, alignment)) return bad(at, name, data, "must be aligned to " + std::to_string(alignment) + " bytes");
  return {};
}

namespace {

// Are the axes, all resolved, a permutation of a packed tensor of `item`-sized elements?
bool is_packed(std::span<const Axis> axes, int64_t item) {
  std::array<std::pair<int64_t, int64_t>, 4> order;  // (stride, n)
  size_t count = 0;
  for (const Axis& axis : axes) {
    const std::pair<int64_t, int64_t> entry{*axis.stride, axis.n};
    size_t at = count++;
    for (; at > 0 && order[at - 1] > entry; --at) order[at] = order[at - 1];
    order[at] = entry;
  }
  Int128 expected = item;
  for (size_t i = 0; i < count; ++i) {
    if (order[i].first != expected) return false;
    expected *= std::max<int64_t>(order[i].second, 1);
  }
  return true;
}

Int128 magnitude(int64_t value) { return value < 0 ? -Int128{value} : Int128{value}; }

}  // namespace

Status resolve_strides(Where at, std::span<const Axis> axes, int64_t item, int64_t multiple) {
  Int128 packed = item;
  Int128 span = item;
  for (size_t i = axes.size(); i-- > 0;) {
    const Axis& axis = axes[i];
    const Int128 dense = axis.dense != kDense ? Int128{axis.dense} : packed;
    packed = dense * std::max<int64_t>(axis.n, 1);
    if (*axis.stride == kDense) {
      const auto inner = axes.subspan(i + 1);
      if (axis.n > 1 && axis.dense == kDense && !is_packed(inner, item)) {
        return bad(at, axis.name, kDense, "must be given, because the strides inside it are not packed");
      }
      if (dense > kMaxSpan) return bad(at, axis.name, dense, "the packed stride is above 2^58");
      *axis.stride = static_cast<int64_t>(dense);
    }
    if (*axis.stride % multiple != 0) {
      return bad(at, axis.name, *axis.stride, "must be a multiple of " + std::to_string(multiple));
    }
    if (axis.n > 1) span += magnitude(*axis.stride) * (axis.n - 1);
    if (span > kMaxSpan) {
      return bad(at, axis.name, *axis.stride, "times " + std::to_string(axis.n) + " entries spans more than 2^58");
    }
    packed = std::min<Int128>(packed, Int128{kMaxSpan} + 1);  // enough to be refused; keeps products inside 128 bits
  }
  return {};
}

Status check_disjoint(Where at, std::span<const Axis> axes, int64_t item) {
  std::array<const Axis*, 4> order{};  // by stride, smallest first (inserted: std::sort of four trips gcc 12's bounds warning)
  size_t count = 0;
  for (const Axis& axis : axes) {
    if (axis.n <= 1) continue;
    size_t at = count++;
    for (; at > 0 && magnitude(*order[at - 1]->stride) > magnitude(*axis.stride); --at) order[at] = order[at - 1];
    order[at] = &axis;
  }
  Int128 extent = item;
  for (size_t i = 0; i < count; ++i) {
    const Axis& axis = *order[i];
    if (magnitude(*axis.stride) < extent) {
      return bad(at, axis.name, *axis.stride, "elements of an output must not overlap; at least " + text(extent) + " needed");
    }
    extent = magnitude(*axis.stride) * (axis.n - 1) + extent;
  }
  return {};
}

}  // namespace headwater::check
