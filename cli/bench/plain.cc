#include "cli/bench/plain.h"

#include <dlfcn.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <random>
#include <thread>

#include "cli/bench/ceilings.h"
#include "src/core/visibility.h"

namespace headwater::cli {
namespace {

// The part of OpenBLAS's C interface that is used (enumerators as in every cblas.h).
struct Blas {
  using Sgemm = void (*)(int order, int trans_a, int trans_b, int m, int n, int k, float alpha, const float* a, int lda, const float* b,
                         int ldb, float beta, float* c, int ldc);
  static constexpr int kRowMajor = 101;
  static constexpr int kNoTrans = 111;
  static constexpr int kTrans = 112;
  Sgemm sgemm = nullptr;
  void (*set_num_threads)(int) = nullptr;
};

const Blas& blas() {
  static const Blas loaded = [] {
    Blas found;
    void* const library = dlopen("libopenblas.so.0", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) return found;
    found.sgemm = reinterpret_cast<Blas::Sgemm>(dlsym(library, "cblas_sgemm"));
    found.set_num_threads = reinterpret_cast<void (*)(int)>(dlsym(library, "openblas_set_num_threads"));
    return found;
  }();
  return loaded;
}

constexpr int64_t kBlockTokens = 64;         // of a prompt that share a GEMM: a causal block leaves out the entries above it
constexpr double kFlopsWorthAThread = 20e6;  // 0.2 ms; below that starting one costs more
constexpr float kLog2e = 1.44269504088896341F;

}  // namespace

PlainMemory::PlainMemory(int64_t floats) : bytes_(static_cast<size_t>(floats) * sizeof(float), true), floats_(floats) {
  std::mt19937 engine(5);
  auto* const values = reinterpret_cast<float*>(bytes_.data());
  const int64_t blob = std::min<int64_t>(floats, 1 << 18);
  for (int64_t i = 0; i < blob; ++i) values[i] = static_cast<float>(engine() / 2147483648.0 - 1.0);
  for (int64_t i = blob; i < floats; ++i) values[i] = values[i - blob];
}

const float* PlainMemory::take(int64_t floats) {
  if (next_ + floats > size()) next_ = 0;
  const float* const p = reinterpret_cast<const float*>(bytes_.data()) + next_;
  next_ += floats;
  return p;
}

bool PlainAttention::available() { return blas().sgemm != nullptr && blas().set_num_threads != nullptr; }

int64_t PlainAttention::largest_unit(const Shape& shape) {
  const int64_t longest = *std::max_element(shape.kv_lens.begin(), shape.kv_lens.end());
  return longest * (shape.d_qk + (shape.shared ? 0 : shape.d_v));
}

PlainAttention::PlainAttention(const Shape& shape, int32_t threads, PlainMemory* memory)
    : shape_(shape), memory_(memory), group_(shape.heads / shape.kv_heads) {
  const int64_t out_floats = int64_t{shape.q_len} * group_ * shape.d_v;
  double flops = 0.0;
  for (size_t r = 0; r < shape.kv_lens.size(); ++r) {
    const Range last = visible(static_cast<int32_t>(r), shape.q_len - 1);
    if (last.end <= last.begin) continue;
    flops += 2.0 * static_cast<double>(last.end - last.begin) * shape.q_len * shape.heads * (shape.d_qk + shape.d_v);
    for (int32_t h = 0; h < shape.kv_heads; ++h) units_.push_back({static_cast<int32_t>(r), h});
  }
  out_.resize(units_.size() * static_cast<size_t>(out_floats));
  for (size_t u = 0; u < units_.size(); ++u) units_[u].out = out_.data() + static_cast<int64_t>(u) * out_floats;
  q_.resize(static_cast<size_t>(shape.q_len) * static_cast<size_t>(group_) * static_cast<size_t>(shape.d_qk));
  std::mt19937 engine(6);
  for (float& x : q_) x = static_cast<float>(engine() / 2147483648.0 - 1.0);
  const auto worth = static_cast<int32_t>(std::clamp(flops / kFlopsWorthAThread, 1.0, static_cast<double>(threads)));
  if (static_cast<int64_t>(units_.size()) >= threads) {
    unit_threads_ = worth;
  } else {
    blas_threads_ = threads;
  }
}

PlainAttention::Range PlainAttention::visible(int32_t request, int64_t token) const {
  const int32_t kv_len = shape_.kv_lens[static_cast<size_t>(request)];
  const EntryRange seen = visible_range(shape_.rule, shape_.rule_value, 1, 0, 1, kv_len, int64_t{kv_len} - shape_.q_len + token);
  return {seen.begin, std::max(seen.begin, seen.end)};
}

void PlainAttention::prepare() {
  for (Unit& unit : units_) {
    const int64_t kv_len = shape_.kv_lens[static_cast<size_t>(unit.request)];
    unit.k = memory_->take(kv_len * (shape_.d_qk + (shape_.shared ? 0 : shape_.d_v)));
    unit.v = shape_.shared ? unit.k : unit.k + kv_len * shape_.d_qk;
  }
  if (available()) blas().set_num_threads(blas_threads_);
}

void PlainAttention::run() {
  std::atomic<size_t> next{0};
  const auto work = [&] {
    std::vector<float> scores;
    for (size_t u = next.fetch_add(1); u < units_.size(); u = next.fetch_add(1)) run_unit(units_[u], &scores);
  };
  std::vector<std::thread> others;
  for (int32_t t = 1; t < unit_threads_; ++t) others.emplace_back(work);
  work();
  for (std::thread& other : others) other.join();
}

void PlainAttention::run_unit(const Unit& unit, std::vector<float>* scores) const {
  for (int64_t first = 0; first < shape_.q_len; first += kBlockTokens) {
    run_block(unit, first, std::min<int64_t>(first + kBlockTokens, shape_.q_len), scores);
  }
}

void PlainAttention::run_block(const Unit& unit, int64_t first, int64_t last, std::vector<float>* scores) const {
  const int64_t begin = visible(unit.request, first).begin;  // both ends only grow with the token
  const int64_t end = visible(unit.request, last - 1).end;
  const auto rows = static_cast<int>((last - first) * group_);
  float* const out = unit.out + first * group_ * shape_.d_v;
  std::fill_n(out, int64_t{rows} * shape_.d_v, 0.0F);
  const auto count = static_cast<int>(end - begin);
  if (count <= 0) return;
  scores->resize(static_cast<size_t>(rows) * static_cast<size_t>(count));
  blas().sgemm(Blas::kRowMajor, Blas::kNoTrans, Blas::kTrans, rows, count, shape_.d_qk, 1.0F, q_.data() + first * group_ * shape_.d_qk,
               shape_.d_qk, unit.k + begin * shape_.d_qk, shape_.d_qk, 0.0F, scores->data(), count);
  const float scale = 1.0F / std::sqrt(static_cast<float>(shape_.d_qk));
  for (int row = 0; row < rows; ++row) {
    float* const s = scores->data() + int64_t{row} * count;
    const Range seen = visible(unit.request, first + row / group_);
    std::fill(s, s + (seen.begin - begin), 0.0F);
    std::fill(s + (seen.end - begin), s + count, 0.0F);
    if (seen.end <= seen.begin) continue;
    float* const own = s + (seen.begin - begin);
    const int64_t n = seen.end - seen.begin;
    const float sum = best_kernel().exponentials(own, n, scale * kLog2e);
    const float inverse = 1.0F / sum;
    for (int64_t i = 0; i < n; ++i) own[i] *= inverse;
  }
  const auto stride = static_cast<int>(value_stride());
  blas().sgemm(Blas::kRowMajor, Blas::kNoTrans, Blas::kNoTrans, rows, shape_.d_v, count, 1.0F, scores->data(), count,
               unit.v + begin * stride, stride, 0.0F, out, shape_.d_v);
}

double PlainAttention::worst_error() const {
  double worst = 0.0;
  if (units_.empty()) return worst;
  for (const Unit* unit : {&units_.front(), &units_.back()}) {
    worst = std::max({worst, row_error(*unit, 0, 0), row_error(*unit, shape_.q_len - 1, group_ - 1)});
  }
  return worst;
}

double PlainAttention::row_error(const Unit& unit, int64_t token, int64_t head) const {
  const Range seen = visible(unit.request, token);
  const int64_t row = token * group_ + head;
  const float* const q = q_.data() + row * shape_.d_qk;
  std::vector<double> weights;
  double high = -std::numeric_limits<double>::infinity();
  for (int64_t j = seen.begin; j < seen.end; ++j) {
    double z = 0.0;
    for (int32_t c = 0; c < shape_.d_qk; ++c) z += static_cast<double>(q[c]) * unit.k[j * shape_.d_qk + c];
    weights.push_back(z / std::sqrt(static_cast<double>(shape_.d_qk)));
    high = std::max(high, weights.back());
  }
  double sum = 0.0;
  for (double& w : weights) sum += w = std::exp(w - high);
  double largest = 1e-30;
  double error = 0.0;
  for (int32_t c = 0; c < shape_.d_v; ++c) {
    double value = 0.0;
    for (size_t i = 0; i < weights.size(); ++i) {
      value += weights[i] / sum * unit.v[(seen.begin + static_cast<int64_t>(i)) * value_stride() + c];
    }
    largest = std::max(largest, std::abs(value));
    error = std::max(error, std::abs(value - static_cast<double>(unit.out[row * shape_.d_v + c])));
  }
  return error / largest;
}

}  // namespace headwater::cli
