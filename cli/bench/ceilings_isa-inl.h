// The loops behind the ceilings, for one vector width. Included once by each ceilings_<isa>.cc, which defines HEADWATER_VECTOR_BYTES
// and is compiled with that set's flags and contraction of a * b + c; everything is local to the file.
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "cli/bench/ceilings.h"

namespace headwater::cli {
namespace {

using Vector = float __attribute__((vector_size(HEADWATER_VECTOR_BYTES)));
constexpr int kLanes = HEADWATER_VECTOR_BYTES / sizeof(float);

double sum_of(const Vector& v) {
  double sum = 0.0;
  for (int i = 0; i < kLanes; ++i) sum += v[i];
  return sum;
}

// 12 independent chains: latency 4 x 2 units need 8; with the two factors 14 registers, so that AVX2 keeps all in 16.
double multiply_add(int64_t steps) {
  constexpr int kChains = 12;
  volatile float seed = 0.5F;
  Vector a[kChains];
  Vector factor = Vector{} + seed;
  Vector term = Vector{} + seed * 0.25F;
  for (Vector& chain : a) chain = Vector{} + seed;
  for (int64_t s = 0; s < steps; ++s) {
    for (Vector& chain : a) chain = chain * factor + term;
  }
  double sum = 0.0;
  for (const Vector& chain : a) sum += sum_of(chain);
  seed = static_cast<float>(sum);
  return 2.0 * kLanes * kChains * static_cast<double>(steps);
}

// Eight sums, so that adding never waits. Hardware prefetch only: software prefetch was slower (design study).
double read(const std::byte* data, size_t bytes) {
  constexpr int kStreams = 8;
  Vector sums[kStreams] = {};
  for (size_t at = 0; at < bytes; at += sizeof(sums)) {
    for (int i = 0; i < kStreams; ++i) {
      Vector v;
      std::memcpy(&v, data + at + static_cast<size_t>(i) * sizeof(Vector), sizeof(Vector));
      sums[i] += v;
    }
  }
  double sum = 0.0;
  for (const Vector& s : sums) sum += sum_of(s);
  return sum;
}

// Plain loops over blocks of 16, which compilers vectorise without licence to reorder sums. Degree 5: 2e-6.
float exponentials(float* row, int64_t count, float scale) {
  constexpr int kBlock = 16;
  const int64_t whole = count / kBlock * kBlock;
  float high[kBlock];
  for (float& h : high) h = row[0];
  for (int64_t i = 0; i < whole; i += kBlock) {
    for (int j = 0; j < kBlock; ++j) high[j] = row[i + j] > high[j] ? row[i + j] : high[j];
  }
  float largest = row[0];
  for (const float h : high) largest = h > largest ? h : largest;
  for (int64_t i = whole; i < count; ++i) largest = row[i] > largest ? row[i] : largest;
  const auto power = [=](float x) {
    constexpr float kMagic = 12582912.0F;  // 1.5 x 2^23: the sum's low bits are the rounded integer
    x = (x - largest) * scale;
    x = x < -126.0F ? -126.0F : x;
    const float shifted = x + kMagic;
    const float f = x - (shifted - kMagic);
    const float p = ((((0.0013333558F * f + 0.0096181291F) * f + 0.055504109F) * f + 0.24022651F) * f + 0.69314718F) * f + 1.0F;
    return __builtin_bit_cast(float, __builtin_bit_cast(uint32_t, p) + (__builtin_bit_cast(uint32_t, shifted) << 23));
  };
  float sums[kBlock] = {};
  for (int64_t i = 0; i < whole; i += kBlock) {
    for (int j = 0; j < kBlock; ++j) {
      const float p = power(row[i + j]);
      row[i + j] = p;
      sums[j] += p;
    }
  }
  float sum = 0.0F;
  for (const float s : sums) sum += s;
  for (int64_t i = whole; i < count; ++i) sum += row[i] = power(row[i]);
  return sum;
}

}  // namespace
}  // namespace headwater::cli
