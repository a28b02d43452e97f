#include "cli/bench/measure.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>

#include "cli/check/tolerance.h"
#include "cli/machine.h"
#include "cli/terminal.h"

namespace headwater::cli {
namespace {

using Clock = std::chrono::steady_clock;

double us_since(Clock::time_point begin) { return std::chrono::duration<double, std::micro>(Clock::now() - begin).count(); }

double quantile(const std::vector<double>& sorted, double q) {
  return sorted[static_cast<size_t>(std::lround(q * static_cast<double>(sorted.size() - 1)))];
}

double median_us(int repeats, const std::function<Status()>& work, Status* status) {
  std::vector<double> times;
  for (int i = 0; i < repeats && status->ok(); ++i) {
    const auto begin = Clock::now();
    *status = work();
    times.push_back(us_since(begin));
  }
  std::sort(times.begin(), times.end());
  return times.empty() ? 0.0 : quantile(times, 0.5);
}

// A plan with its buffers, ready to run any copy of a workload.
class Bench {
 public:
  Bench(Workload* workload, const MeasureOptions& options) : workload_(workload), options_(options) {}

  Status prepare(Row* row) {
    PlanOptions plan_options = options_.plan;
    plan_options.workers = options_.threads;
    Status status;
    row->plan_us = median_us(
        5,
        [&]() -> Status {
          const Result<Bounds> bounds = Bounds::of(workload_->problem(0));
          if (!bounds.ok()) return bounds.status();
          Result<Plan> plan = make_plan(*bounds, plan_options);
          if (!plan.ok()) return plan.status();
          plan_ = std::make_unique<Plan>(*plan);
          return {};
        },
        &status);
    if (!status.ok()) return status;
    schedule_ = std::make_unique<Bytes>(plan_->schedule_bytes());
    scratch_ = std::make_unique<Bytes>(plan_->scratch_bytes());
    const Lengths lengths = Lengths::of(workload_->problem(0));
    row->schedule_us = median_us(
        20, [&] { return plan_->schedule(lengths, buffer(*schedule_)); }, &status);
    row->kernel = plan_->kernel();
    row->schedule_bytes = plan_->schedule_bytes();
    row->scratch_bytes = plan_->scratch_bytes();
    return status;
  }

  // Copy 0 against the oracle.
  Status check(Row* row) {
    if (Status status = run(0); !status.ok()) return status;
    for (const auto& part : workload_->parts_to_check()) {
      const conformance::Reference reference = conformance::run_reference(part->problem);
      if (!reference.status.ok()) return reference.status;
      const conformance::Judgement judgement = conformance::judge(part->problem, reference);
      row->worst_error = std::max(row->worst_error, judgement.worst);
      if (!judgement.fault.empty()) {
        row->wrong = true;
        return invalid("wrong result: " + judgement.fault);
      }
    }
    return {};
  }

  Status run_next() {
    next_ = (next_ + 1) % workload_->copies();
    return run(next_);
  }

 private:
  static Buffer buffer(const Bytes& bytes) { return {bytes.data(), bytes.size()}; }
  Status run(int64_t copy) { return plan_->run(workload_->problem(copy), buffer(*schedule_), buffer(*scratch_)); }

  Workload* workload_;
  MeasureOptions options_;
  std::unique_ptr<Plan> plan_;
  std::unique_ptr<Bytes> schedule_;
  std::unique_ptr<Bytes> scratch_;
  int64_t next_ = 0;
};

// Runs of one shape in a round: short ones several times, so that a round is not all changes of shape.
int32_t burst_of(double us) { return static_cast<int32_t>(std::clamp(2000.0 / std::max(us, 1.0), 1.0, 16.0)); }

void finish(const Workload& workload, std::vector<double> times, const Ceilings& ceilings, Row* row) {
  std::sort(times.begin(), times.end());
  row->runs = static_cast<int64_t>(times.size());
  row->copies = workload.copies();
  row->min_us = times.front();
  row->median_us = quantile(times, 0.5);
  row->spread = (quantile(times, 0.75) - quantile(times, 0.25)) / row->median_us;
  row->flops = workload.flops();
  row->kv_bytes = workload.kv_bytes();
  row->gflops = row->flops / row->min_us * 1e-3;
  row->gbps = row->kv_bytes / row->min_us * 1e-3;
  const double arithmetic_us = row->flops / ceilings.fma_gflops * 1e-3;
  const double memory_us = row->kv_bytes / ceilings.dram_gbps * 1e-3;
  row->memory_bound = memory_us > arithmetic_us;
  row->floor_us = std::max(arithmetic_us, memory_us);
  row->floor_ratio = row->floor_us > 0.0 ? row->min_us / row->floor_us : 0.0;
}

}  // namespace

std::vector<Row> measure(const std::vector<Shape>& shapes, const MeasureOptions& options, CeilingMeter* meter) {
  const int64_t cold_bytes = options.cold_bytes > 0 ? options.cold_bytes : std::max(int64_t{160} << 20, 4 * last_cache_bytes());
  Arenas arenas;
  std::vector<std::unique_ptr<Workload>> workloads;
  workloads.reserve(shapes.size());
  for (const Shape& shape : shapes) workloads.push_back(std::make_unique<Workload>(shape, cold_bytes, &arenas));
  std::vector<Row> rows(shapes.size());
  for (size_t i = 0; i < shapes.size(); ++i) {
    rows[i].name = shapes[i].name;
    rows[i].origin = shapes[i].origin;
  }
  if (const Status status = arenas.fill(); !status.ok()) {
    for (Row& row : rows) row.fault = status.message();
    return rows;
  }

  std::vector<Bench> benches;
  benches.reserve(workloads.size());
  std::vector<std::vector<double>> times(shapes.size());
  std::vector<int32_t> bursts(shapes.size(), 1);
  {
    Progress progress("checking", static_cast<int64_t>(shapes.size()));
    for (size_t i = 0; i < workloads.size(); ++i) {
      progress.note("checking " + rows[i].name);
      progress.set(static_cast<int64_t>(i));
      workloads[i]->bind(arenas);
      benches.emplace_back(workloads[i].get(), options);
      Status status = benches[i].prepare(&rows[i]);
      if (status.ok()) status = benches[i].check(&rows[i]);
      const auto begin = Clock::now();
      if (status.ok()) status = benches[i].run_next();
      bursts[i] = burst_of(us_since(begin));
      if (!status.ok()) rows[i].fault = status.message();
    }
  }
  Progress progress("timing", static_cast<int64_t>(options.reps) * static_cast<int64_t>(shapes.size()));
  for (bool more = true; more;) {
    more = false;
    meter->sample();
    int64_t done = 0;
    for (size_t i = 0; i < benches.size(); ++i) {
      for (int32_t k = 0; k < bursts[i] && rows[i].fault.empty() && static_cast<int32_t>(times[i].size()) < options.reps; ++k) {
        const auto begin = Clock::now();
        const Status status = benches[i].run_next();
        times[i].push_back(us_since(begin));
        if (!status.ok()) rows[i].fault = status.message();
      }
      const bool unfinished = rows[i].fault.empty() && static_cast<int32_t>(times[i].size()) < options.reps;
      more = more || unfinished;
      done += unfinished ? static_cast<int64_t>(times[i].size()) : options.reps;
      progress.set(done);
    }
  }
  for (size_t i = 0; i < rows.size(); ++i) {
    if (rows[i].fault.empty()) finish(*workloads[i], std::move(times[i]), meter->best(), &rows[i]);
  }
  return rows;
}

}  // namespace headwater::cli
