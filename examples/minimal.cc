// The smallest use: one request of 3 new tokens, 8 query heads over 2 KV heads, float32, causal.
//   c++ -std=c++20 minimal.cc $(pkg-config --cflags --libs headwater)
#include <headwater/headwater.h>

#include <cmath>
#include <cstdio>
#include <vector>

int main() {
  constexpr int kTokens = 100;  // in the cache, the new ones included
  constexpr int kNew = 3;
  constexpr int kHeads = 8;
  constexpr int kKvHeads = 2;
  constexpr int kWidth = 64;
  std::vector<float> q(kNew * kHeads * kWidth);
  std::vector<float> k(kTokens * kKvHeads * kWidth);
  std::vector<float> v(kTokens * kKvHeads * kWidth);
  std::vector<float> out(q.size());
  std::vector<float> lse(kNew * kHeads);
  for (size_t i = 0; i < q.size(); ++i) q[i] = std::sin(0.3F * static_cast<float>(i));
  for (size_t i = 0; i < k.size(); ++i) k[i] = std::cos(0.7F * static_cast<float>(i));
  for (size_t i = 0; i < v.size(); ++i) v[i] = static_cast<float>(i / (kKvHeads * kWidth));  // row j holds the number j

  const std::vector<int32_t> qo_indptr = {0, kNew};     // request 0 owns query rows 0, 1, 2
  const std::vector<int32_t> kv_indptr = {0, kTokens};  // and KV rows 0 .. 99
  headwater::Addressing ragged;
  ragged.kv_indptr = kv_indptr.data();
  ragged.num_pages = kTokens;
  headwater::KvTensor keys;
  keys.data = k.data();
  keys.format = headwater::Format::kF32;
  keys.width = kWidth;
  headwater::KvTensor values = keys;
  values.data = v.data();
  const std::vector<headwater::Source> sources = {
      headwater::Source::separate_kv(keys, values, kKvHeads, ragged, headwater::Rule::causal())};

  headwater::Problem problem;
  problem.q = {.data = q.data(), .type = headwater::Type::kF32, .total = kNew, .heads = kHeads, .width = kWidth};
  problem.requests = 1;
  problem.qo_indptr = qo_indptr.data();
  problem.sources = sources;
  problem.sm_scale = 0.125F;
  problem.out = {.data = out.data(), .type = headwater::Type::kF32};
  problem.lse.data = lse.data();

  const headwater::Status status = headwater::attend(problem);
  if (!status.ok()) {
    std::fprintf(stderr, "%s\n", status.message().c_str());  // names the field, its value and the rule it breaks
    return 1;
  }
  for (int t = 0; t < kNew; ++t) {
    std::printf("token %d, head 0: mean position attended %.3f, lse %.4f\n", kTokens - kNew + t,
                static_cast<double>(out[static_cast<size_t>(t) * kHeads * kWidth]),
                static_cast<double>(lse[static_cast<size_t>(t) * kHeads]));
  }
  return 0;
}
