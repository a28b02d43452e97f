// What a C++ engine writes: one query over three keys, checked by hand.
#include <cmath>
#include <cstdio>

#include "headwater/headwater.h"

int main() {
  const float q[2] = {1.0F, 0.0F};
  const float k[3][2] = {{0.0F, 1.0F}, {1.0F, 0.0F}, {2.0F, 0.0F}};
  const float v[3][1] = {{1.0F}, {2.0F}, {4.0F}};
  const int32_t qo_indptr[2] = {0, 1};
  const int32_t kv_indptr[2] = {0, 3};
  headwater::Addressing ragged;
  ragged.kv_indptr = kv_indptr;
  ragged.num_pages = 3;
  const headwater::Source source =
      headwater::Source::separate_kv({.data = k, .format = headwater::Format::kF32, .width = 2},
                                     {.data = v, .format = headwater::Format::kF32, .width = 1}, 1, ragged, headwater::Rule::causal());
  float out[1] = {-1.0F};
  headwater::Problem problem;
  problem.q = {.data = q, .type = headwater::Type::kF32, .total = 1, .heads = 1, .width = 2};
  problem.requests = 1;
  problem.qo_indptr = qo_indptr;
  problem.sources = {&source, 1};
  problem.sm_scale = 1.0F;
  problem.out = {.data = out, .type = headwater::Type::kF32};
  const headwater::Status status = headwater::attend(problem);
  if (!status.ok()) {
    std::printf("consumer: %s\n", status.message().c_str());
    return 1;
  }
  const double e1 = std::exp(1.0);
  const double e2 = std::exp(2.0);
  const double expect = (1.0 + 2.0 * e1 + 4.0 * e2) / (1.0 + e1 + e2);
  std::printf("consumer: headwater %s, out %.6f, expected %.6f\n", headwater::version(), static_cast<double>(out[0]), expect);
  return std::abs(out[0] - expect) < 1e-5 ? 0 : 1;
}
