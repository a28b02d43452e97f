// The loops behind the ceilings, for one vector width. Included once by each ceilings_<isa>.cc, which defines HEADWATER_VECTOR_BYTES
// and is compiled with that set's flags and contraction of a * b + c; everything is local to the file.
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "cli/bench/ceilings.h"

namespace headwater::cli {
namespace {

typedef float Vector __attribute__((vector_size(HEADWATER_VECTOR_BYTES)));
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

}  // namespace
}  // namespace headwater::cli
