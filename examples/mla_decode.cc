// What an engine does: MLA decode (DeepSeek-R1's shape on one of 8 ranks) over a paged MXFP4 latent cache. One plan for the process,
// one schedule a step shared by all layers, one run a layer, new rows quantised into the cache by append(). Buffers are the caller's.
#include <headwater/headwater.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <string>
#include <vector>

namespace {

constexpr int kLayers = 2;
constexpr int kRequests = 3;
constexpr int kHeads = 16;
constexpr int kWidth = 576;       // latent 512, rope 64
constexpr int kValueWidth = 512;  // V is the latent
constexpr int kPage = 64;
constexpr int kPagesEach = 4;  // of a request: 256 tokens
constexpr int kPages = kRequests * kPagesEach;
constexpr int kSteps = 4;

void must(const headwater::Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.message().c_str());
  std::exit(1);
}

// 256-byte aligned memory of the caller, for schedule and scratch.
class Bytes {
 public:
  explicit Bytes(size_t bytes)
      : size_(std::max<size_t>((bytes + 255) / 256 * 256, 256)), data_(std::aligned_alloc(256, size_), &std::free) {}
  [[nodiscard]] headwater::Buffer buffer() const { return {data_.get(), size_}; }

 private:
  size_t size_;
  std::unique_ptr<void, void (*)(void*)> data_;
};

// The cache of one layer: e2m1 pairs and their e8m0 scales.
struct Cache {
  std::vector<uint8_t> rows = std::vector<uint8_t>(static_cast<size_t>(kPages) * kPage * kWidth / 2);
  std::vector<uint8_t> scales = std::vector<uint8_t>(static_cast<size_t>(kPages) * kPage * kWidth / 32);
};

// The tables of the batch, updated in place step by step. Pages of the requests are interleaved in the cache.
struct Batch {
  std::vector<int32_t> qo_indptr;
  std::vector<int32_t> block_table;
  std::vector<int32_t> seq_lens = {70, 1, 200};  // before the first step
  Batch() {
    for (int r = 0; r <= kRequests; ++r) qo_indptr.push_back(r);
    for (int r = 0; r < kRequests; ++r) {
      for (int p = 0; p < kPagesEach; ++p) block_table.push_back(p * kRequests + r);
    }
  }
  [[nodiscard]] int64_t slot(int request, int token) const {
    return int64_t{block_table[static_cast<size_t>(request * kPagesEach + token / kPage)]} * kPage + token % kPage;
  }
};

headwater::Source source_of(const Cache& cache, const Batch& batch) {
  headwater::KvTensor latent;
  latent.data = cache.rows.data();
  latent.format = headwater::Format::kMxfp4;
  latent.width = kWidth;
  latent.scales = cache.scales.data();
  headwater::Addressing paged;
  paged.kind = headwater::AddressingKind::kBlockTable;
  paged.page_size = kPage;
  paged.num_pages = kPages;
  paged.block_table = batch.block_table.data();
  paged.max_pages = kPagesEach;
  paged.seq_lens = batch.seq_lens.data();
  return headwater::Source::shared_kv(latent, kValueWidth, paged, headwater::Rule::causal());
}

std::vector<float> random_rows(std::mt19937* random, size_t rows) {
  std::normal_distribution<float> normal;
  std::vector<float> values(rows * kWidth);
  for (float& x : values) x = normal(*random);
  return values;
}

void store(const headwater::Source& source, const std::vector<float>& rows, const std::vector<int64_t>& slots) {
  headwater::AppendRows append;
  append.k = rows.data();
  append.type = headwater::Type::kF32;
  append.count = static_cast<int64_t>(slots.size());
  must(headwater::append(source, append, slots.data()));
}

// Largest difference from the float64 oracle, relative to the largest output.
double error_of(const headwater::Problem& problem, const std::vector<float>& out) {
  std::vector<double> exact(out.size());
  must(headwater::reference_attention(problem, {.out = exact.data()}));
  double error = 0.0;
  double largest = 0.0;
  for (size_t i = 0; i < out.size(); ++i) {
    error = std::max(error, std::abs(static_cast<double>(out[i]) - exact[i]));
    largest = std::max(largest, std::abs(exact[i]));
  }
  return error / largest;
}

}  // namespace

int main() {
  std::mt19937 random(1);
  Batch batch;
  std::vector<Cache> caches(kLayers);
  for (Cache& cache : caches) {  // what a prefill would have left there
    for (int r = 0; r < kRequests; ++r) {
      std::vector<int64_t> slots;
      for (int token = 0; token < batch.seq_lens[static_cast<size_t>(r)]; ++token) slots.push_back(batch.slot(r, token));
      store(source_of(cache, batch), random_rows(&random, slots.size()), slots);
    }
  }
  std::vector<float> q(static_cast<size_t>(kRequests) * kHeads * kWidth);
  std::vector<float> out(static_cast<size_t>(kRequests) * kHeads * kValueWidth);
  std::vector<headwater::Source> sources = {source_of(caches[0], batch)};
  headwater::Problem problem;
  problem.q = {.data = q.data(), .type = headwater::Type::kF32, .total = kRequests, .heads = kHeads, .width = kWidth};
  problem.requests = kRequests;
  problem.qo_indptr = batch.qo_indptr.data();
  problem.sources = sources;
  problem.sm_scale = 0.1352338F;
  problem.out = {.data = out.data(), .type = headwater::Type::kF32};

  // Bounds fix kernel, tiles and buffer sizes; they must cover every step to come.
  headwater::Result<headwater::Bounds> bounds = headwater::Bounds::of(problem);
  must(bounds.status());
  bounds.value().sources[0].max_len = kPagesEach * kPage;
  bounds.value().sources[0].max_total_len = 0;
  const headwater::Result<headwater::Plan> plan = headwater::make_plan(bounds.value());
  must(plan.status());
  const Bytes schedule(plan->schedule_bytes());
  const Bytes scratch(plan->scratch_bytes());

  double worst = 0.0;
  for (int step = 0; step < kSteps; ++step) {
    std::vector<int64_t> slots;
    for (int r = 0; r < kRequests; ++r) slots.push_back(batch.slot(r, batch.seq_lens[static_cast<size_t>(r)]++));
    must(plan->schedule(headwater::Lengths::of(problem), schedule.buffer()));  // once a step, for all layers
    for (const Cache& cache : caches) {
      sources[0] = source_of(cache, batch);
      store(sources[0], random_rows(&random, slots.size()), slots);
      q = random_rows(&random, static_cast<size_t>(kRequests) * kHeads);
      problem.q.data = q.data();
      must(plan->run(problem, schedule.buffer(), scratch.buffer()));
      worst = std::max(worst, error_of(problem, out));
    }
    must(plan->check(schedule.buffer()));
  }
  std::printf("%d steps of %d layers with %s; largest difference from the float64 oracle %.1e of the output\n", kSteps, kLayers,
              plan->kernel().c_str(), worst);
  return worst < 1e-4 ? 0 : 1;
}
