#include "cli/formats/choice.h"

#include <algorithm>
#include <cmath>

namespace headwater::cli::formats {
namespace {

constexpr float kE4m3Max = 448.0F;
constexpr float kNvfp4Max = 448.0F * 6.0F;  // largest block scale times largest element

float largest(const float* values, int64_t count) {
  float amax = 0.0F;
  for (int64_t i = 0; i < count; ++i) amax = std::max(amax, std::fabs(values[i]));
  return amax;
}

std::vector<float> scales_of(Format format, ScaleFrom from, const std::vector<float>& range) {
  const bool scaled = format == Format::kE4m3 || format == Format::kNvfp4;  // the others' block scales reach far enough
  if (!scaled || from == ScaleFrom::kRecord || range.empty()) return {};
  const float largest_code = format == Format::kE4m3 ? kE4m3Max : kNvfp4Max;
  const auto scale = [&](float amax) { return amax > 0.0F ? amax / largest_code : 1.0F; };
  if (from == ScaleFrom::kOne) return {1.0F};
  if (from == ScaleFrom::kTensor) return {scale(*std::max_element(range.begin(), range.end()))};
  std::vector<float> scales;
  std::transform(range.begin(), range.end(), std::back_inserter(scales), scale);
  return scales;
}

int64_t beyond(Format format, const std::vector<float>& scales, const std::vector<float>& values, int32_t heads, int32_t width) {
  if (format != Format::kE4m3 || scales.empty()) return 0;
  int64_t n = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    const size_t head = i / static_cast<size_t>(width) % static_cast<size_t>(heads);
    // Half a step past 448 still rounds to it.
    if (std::fabs(values[i]) > (kE4m3Max + 16.0F) * scales[scales.size() == 1 ? 0 : head]) ++n;
  }
  return n;
}

}  // namespace

std::vector<Choice> choices_for(const Rows& rows, int32_t recent) {
  const std::string last = ", last " + std::to_string(recent) + " bf16";
  std::vector<Choice> list = {{"bf16", Format::kBf16, Format::kBf16},
                              {"fp8, scale 1.0", Format::kE4m3, Format::kE4m3, ScaleFrom::kOne},
                              {"fp8 per tensor", Format::kE4m3, Format::kE4m3, ScaleFrom::kTensor}};
  if (rows.heads > 1) list.push_back({"fp8 per head", Format::kE4m3, Format::kE4m3, ScaleFrom::kHead});
  list.push_back({"q8_0", Format::kQ8_0, Format::kQ8_0});
  list.push_back({"int8", Format::kInt8, Format::kInt8});
  if (rows.shared) {
    const bool fixed[] = {rows.d_qk == 576, rows.d_qk == 512};
    if (fixed[0]) list.push_back({"fp8_ds_656", Format::kFp8Ds656, Format::kFp8Ds656});
    if (fixed[1]) list.push_back({"fp8_ds_584", Format::kFp8Ds584, Format::kFp8Ds584});
  }
  list.push_back({"mxfp4", Format::kMxfp4, Format::kMxfp4});
  list.push_back({"nvfp4", Format::kNvfp4, Format::kNvfp4, ScaleFrom::kTensor});
  if (!rows.shared) {
    list.push_back({"fp8 K, mxfp4 V", Format::kE4m3, Format::kMxfp4, ScaleFrom::kTensor});
    if (recent > 0) list.push_back({"mxfp4" + last, Format::kMxfp4, Format::kMxfp4, ScaleFrom::kRecord, recent});
    return list;
  }
  if (rows.d_qk > 64) list.push_back({"mxfp4_rope_bf16", Format::kMxfp4RopeBf16, Format::kMxfp4RopeBf16});
  if (rows.d_qk == 576) {
    list.push_back({"nvfp4_ds_352", Format::kNvfp4Ds352, Format::kNvfp4Ds352});
    list.push_back({"nvfp4_ds_432", Format::kNvfp4Ds432, Format::kNvfp4Ds432});
  }
  if (rows.d_qk == 512) list.push_back({"nvfp4_ds_384", Format::kNvfp4Ds384, Format::kNvfp4Ds384});
  if (rows.d_qk > 64 && recent > 0) {
    list.push_back({"mxfp4_rope_bf16" + last, Format::kMxfp4RopeBf16, Format::kMxfp4RopeBf16, ScaleFrom::kRecord, recent});
  }
  return list;
}

Range range_of(const Rows& rows) {
  Range range;
  range.k.resize(static_cast<size_t>(rows.heads));
  if (!rows.shared) range.v.resize(static_cast<size_t>(rows.heads));
  for (int64_t r = 0; r < rows.count; ++r) {
    for (int32_t h = 0; h < rows.heads; ++h) {
      float& k = range.k[static_cast<size_t>(h)];
      k = std::max(k, largest(rows.key(r, h), rows.d_qk));
      if (rows.shared) continue;
      float& v = range.v[static_cast<size_t>(h)];
      v = std::max(v, largest(rows.value(r, h), rows.d_v));
    }
  }
  return range;
}

ScaleValues scales_for(const Choice& choice, const Range& range) {
  return {scales_of(choice.k, choice.scales, range.k), scales_of(choice.v, choice.scales, range.v)};
}

int64_t saturated(const Choice& choice, const ScaleValues& scales, const Rows& rows) {
  return beyond(choice.k, scales.k, rows.k, rows.heads, rows.d_qk) + beyond(choice.v, scales.v, rows.v, rows.heads, rows.d_v);
}

}  // namespace headwater::cli::formats
