#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <numeric>
#include <utility>

#include "cli/formats/study.h"
#include "cli/machine.h"

namespace headwater::cli::formats {
namespace {

constexpr int kWarmRuns = 3;
constexpr int kMinRuns = 9;
constexpr int kMaxRuns = 200;
constexpr double kMinSeconds = 0.1;  // in all

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// One source of the timed problem: the first `len` entries of a paged cache.
struct Paged {
  static constexpr int32_t kPage = 64;
  Paged(Encoded cache, int64_t len) : encoded(std::move(cache)), seq_len(static_cast<int32_t>(len)) {
    table.resize(static_cast<size_t>(encoded.source().addressing.num_pages));
    std::iota(table.begin(), table.end(), 0);
  }
  [[nodiscard]] Source source() const {
    Source s = encoded.source();
    s.rule = Rule::full();
    s.addressing.kind = AddressingKind::kBlockTable;
    s.addressing.block_table = table.data();
    s.addressing.max_pages = static_cast<int64_t>(table.size());
    s.addressing.seq_lens = &seq_len;
    return s;
  }
  Encoded encoded;
  int32_t seq_len;
  std::vector<int32_t> table;
};

Status time_runs(const Problem& problem, DecodeTime* time) {
  const Result<Bounds> bounds = Bounds::of(problem);
  if (!bounds.ok()) return bounds.status();
  const Result<Plan> plan = make_plan(*bounds);
  if (!plan.ok()) return plan.status();
  io::AlignedBytes schedule(plan->schedule_bytes());
  io::AlignedBytes scratch(plan->scratch_bytes());
  const Buffer schedule_buf{schedule.data(), schedule.size()};
  const Buffer scratch_buf{scratch.data(), scratch.size()};
  Status status = plan->schedule(Lengths::of(problem), schedule_buf);
  std::vector<double> runs;
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; status.ok() && i < kMaxRuns && (i < kWarmRuns + kMinRuns || seconds_since(begin) < kMinSeconds); ++i) {
    const auto start = std::chrono::steady_clock::now();
    status = plan->run(problem, schedule_buf, scratch_buf);
    if (i >= kWarmRuns) runs.push_back(seconds_since(start));
  }
  if (!status.ok()) return status;
  time->fastest_s = *std::min_element(runs.begin(), runs.end());
  const Timing timing = summarize(std::move(runs));
  time->median_s = timing.median;
  time->low_s = timing.low;
  time->high_s = timing.high;
  time->kernel = plan->kernel();
  return {};
}

}  // namespace

Result<DecodeTime> time_decode(const Layer& layer, const Choice& choice, const ScaleValues& scales, int64_t context) {
  const Rows& rows = layer.sources[0];
  DecodeTime time;
  time.context = context;
  const int64_t recent = std::min<int64_t>(choice.recent, context);
  std::vector<std::unique_ptr<Paged>> caches;  // the sources point into them
  std::vector<Source> sources;
  for (const bool young : {false, true}) {
    const int64_t len = young ? recent : context - recent;
    if (len == 0) continue;
    const Format k = young ? Format::kBf16 : choice.k;
    const Format v = young ? Format::kBf16 : choice.v;
    const Encoded::Layout layout{Paged::kPage, (len + rows.count - 1) / rows.count};
    Result<Encoded> encoded = Encoded::make(rows, k, v, young ? ScaleValues{} : scales, layout);
    if (!encoded.ok()) return encoded.status();
    caches.push_back(std::make_unique<Paged>(std::move(encoded).value(), len));
    sources.push_back(caches.back()->source());
    time.bytes += static_cast<int64_t>(static_cast<double>(len) * entry_bytes(rows, k, v));
  }
  const size_t columns = static_cast<size_t>(layer.heads) * static_cast<size_t>(layer.d_qk);
  io::AlignedBytes q(columns * sizeof(float));
  io::AlignedBytes out(static_cast<size_t>(layer.heads) * static_cast<size_t>(layer.d_v) * sizeof(float));
  std::memcpy(q.data(), layer.q.data() + (layer.q.size() - columns), columns * sizeof(float));
  const int32_t qo_indptr[] = {0, 1};
  Problem problem;
  problem.q.data = q.data();
  problem.q.type = Type::kF32;
  problem.q.total = 1;
  problem.q.heads = layer.heads;
  problem.q.width = layer.d_qk;
  problem.requests = 1;
  problem.qo_indptr = qo_indptr;
  problem.sources = sources;
  problem.sm_scale = layer.sm_scale;
  problem.logits_soft_cap = layer.softcap;
  problem.out.data = out.data();
  problem.out.type = Type::kF32;
  const Status status = time_runs(problem, &time);
  if (!status.ok()) return status;
  return time;
}

}  // namespace headwater::cli::formats
