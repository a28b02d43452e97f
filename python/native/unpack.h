// From arrays and descriptor integers to a Problem: shapes, types, devices and strides are judged here, by name.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "headwater/headwater.h"
#include "python/native/arrays.h"

namespace headwater::python {

// Integers of one call, in the order of headwater/_describe.py.
enum HeaderField : uint8_t { kVersion, kNumSources, kOutType, kQTail, kQScale, kQoIndptr, kContextLens, kSinks, kFlags, kHeaderSize };
enum SourceField : uint8_t {
  kKFormat,
  kKWidth,
  kVFormat,
  kVWidth,
  kShared,
  kValueWidth,
  kK,
  kKBlockScales,
  kKScale,
  kV,
  kVBlockScales,
  kVScale,
  kAddressing,
  kBlockTable,
  kKvIndptr,
  kKvIndices,
  kSeqLens,
  kLastPageLen,
  kRule,
  kWindowLeft,
  kRatio,
  kIndices,
  kTopkLens,
  kIndexSpace,
  kFirstPosition,
  kPositionStride,
  kSourceSize
};
enum NumberField : uint8_t { kSmScale, kSoftcap, kNumbersHeader };  // then k_scale and v_scale of each source; NaN = not given
inline constexpr int64_t kDescriptorVersion = 1;
enum Flags : uint8_t { kBatchInvariant = 1, kChecked = 2 };

struct Arrays {
  std::span<const headwater_array> tensors;
  const headwater_array* q = nullptr;  // all others must be on its device; null: the first tensor's
};

struct Unpacked {
  std::vector<Source> sources;  // problem.sources points here
  Problem problem;
  PlanOptions options;
};

[[nodiscard]] Status unpack_source(const Arrays& arrays, std::span<const int64_t> fields, const double* scales, const std::string& name,
                                   Source* source);
[[nodiscard]] Status unpack(const headwater_call& call, Unpacked* unpacked);

// What every array must be: on the device, of the rank, with a last axis that is packed.
[[nodiscard]] Status check_array(const std::string& name, const headwater_array& a, const headwater_array& like, int32_t min_ndim,
                                 int32_t max_ndim);
[[nodiscard]] int64_t type_bytes(int32_t type);
[[nodiscard]] Status wrong(const std::string& field, const std::string& value, const std::string& rule);
[[nodiscard]] std::string shape_text(const headwater_array& a);
[[nodiscard]] std::string array_type_name(int32_t type);

}  // namespace headwater::python
