#include "cli/bench/measure.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>

#include "cli/bench/plain.h"
#include "cli/check/tolerance.h"
#include "cli/machine.h"
#include "cli/terminal.h"
#include "src/core/check.h"

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
  Bench(Workload* workload, const PlanOptions& options, int32_t threads) : workload_(workload), options_(options) {
    options_.workers = threads;
  }

  Status prepare(Row* row) {
    Status status;
    row->plan_us = median_us(
        5,
        [&]() -> Status {
          const Result<Bounds> bounds = Bounds::of(workload_->problem(0));
          if (!bounds.ok()) return bounds.status();
          Result<Plan> plan = make_plan(*bounds, options_);
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
  PlanOptions options_;
  std::unique_ptr<Plan> plan_;
  std::unique_ptr<Bytes> schedule_;
  std::unique_ptr<Bytes> scratch_;
  int64_t next_ = 0;
};

// Runs of one shape in a round: short ones several times, so that a round is not all changes of shape.
int32_t burst_of(double us) { return static_cast<int32_t>(std::clamp(2000.0 / std::max(us, 1.0), 1.0, 16.0)); }

// All that is timed of one shape.
struct Subject {
  std::unique_ptr<Workload> workload;
  std::unique_ptr<Bench> bench;
  std::unique_ptr<Bench> fewer;  // with fewer threads
  std::unique_ptr<PlainAttention> plain;
  int32_t burst = 1;
  std::vector<double> times;
  std::vector<double> fewer_times;
  std::vector<double> plain_times;
};

// Plans, checks and runs the shape once.
Status prepare(const MeasureOptions& options, Subject* subject, Row* row) {
  subject->bench = std::make_unique<Bench>(subject->workload.get(), options.plan, options.threads);
  HEADWATER_TRY(subject->bench->prepare(row));
  HEADWATER_TRY(subject->bench->check(row));
  const auto begin = Clock::now();
  HEADWATER_TRY(subject->bench->run_next());
  subject->burst = burst_of(us_since(begin));
  if (options.fewer_threads == 0) return {};
  Row other;
  subject->fewer = std::make_unique<Bench>(subject->workload.get(), options.plan, options.fewer_threads);
  HEADWATER_TRY(subject->fewer->prepare(&other));
  return subject->fewer->run_next();
}

Status time_runs(Bench* bench, int32_t runs, std::vector<double>* times) {
  for (int32_t i = 0; i < runs; ++i) {
    const auto begin = Clock::now();
    HEADWATER_TRY(bench->run_next());
    times->push_back(us_since(begin));
  }
  return {};
}

void time_plain(Subject* subject, Row* row) {
  const bool first = subject->plain_times.empty();
  subject->plain->prepare();
  if (first) subject->plain->run();  // OpenBLAS's threads and buffers come with its first call
  const auto begin = Clock::now();
  subject->plain->run();
  subject->plain_times.push_back(us_since(begin));
  if (first) row->plain_error = subject->plain->worst_error();
}

std::unique_ptr<PlainMemory> make_plain(const MeasureOptions& options, std::vector<Subject>* subjects, const std::vector<Row>& rows) {
  if (options.plain_rounds <= 0 || !PlainAttention::available()) return nullptr;
  int64_t floats = 3 * last_cache_bytes() / 4;  // three times the last cache level
  for (const Subject& subject : *subjects) floats = std::max(floats, PlainAttention::largest_unit(subject.workload->shape()));
  auto memory = std::make_unique<PlainMemory>(floats);
  for (size_t i = 0; i < subjects->size(); ++i) {
    const Shape& shape = (*subjects)[i].workload->shape();
    if (!rows[i].fault.empty() || !PlainAttention::takes(shape)) continue;
    (*subjects)[i].plain = std::make_unique<PlainAttention>(shape, options.threads, memory.get());
  }
  return memory;
}

double least(const std::vector<double>& times) { return times.empty() ? 0.0 : *std::min_element(times.begin(), times.end()); }

void finish(const Ceilings& ceilings, Subject* subject, Row* row) {
  const Workload& workload = *subject->workload;
  std::vector<double>& times = subject->times;
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
  row->plain_us = least(subject->plain_times);
  row->plain_runs = static_cast<int64_t>(subject->plain_times.size());
  row->fewer_threads_us = least(subject->fewer_times);
  row->fewer_threads_runs = static_cast<int64_t>(subject->fewer_times.size());
}

void compare_twins(std::vector<Row>* rows) {
  for (Row& row : *rows) {
    const auto twin = std::find_if(rows->begin(), rows->end(), [&](const Row& other) { return other.name == row.twin; });
    if (row.fault.empty() && twin != rows->end() && twin->floor_ratio > 0.0) row.over_twin = row.floor_ratio / twin->floor_ratio;
  }
}

}  // namespace

std::vector<Row> measure(const std::vector<Shape>& shapes, const MeasureOptions& options, CeilingMeter* meter) {
  const int64_t cold_bytes = options.cold_bytes > 0 ? options.cold_bytes : std::max(int64_t{160} << 20, 4 * last_cache_bytes());
  Arenas arenas(options.huge_pages);
  std::vector<Subject> subjects(shapes.size());
  std::vector<Row> rows(shapes.size());
  for (size_t i = 0; i < shapes.size(); ++i) {
    subjects[i].workload = std::make_unique<Workload>(shapes[i], cold_bytes, &arenas);
    rows[i].name = shapes[i].name;
    rows[i].origin = shapes[i].origin;
    rows[i].reach = shapes[i].reach;
    rows[i].aim = shapes[i].aim;
    rows[i].twin = shapes[i].twin;
  }
  if (const Status status = arenas.fill(); !status.ok()) {
    for (Row& row : rows) row.fault = status.message();
    return rows;
  }
  const auto count = static_cast<int64_t>(shapes.size());
  {
    Progress progress("checking", count);
    for (size_t i = 0; i < subjects.size(); ++i) {
      progress.note("checking " + rows[i].name);
      progress.set(static_cast<int64_t>(i));
      subjects[i].workload->bind(arenas);
      if (const Status status = prepare(options, &subjects[i], &rows[i]); !status.ok()) rows[i].fault = status.message();
    }
  }
  const std::unique_ptr<PlainMemory> plain = make_plain(options, &subjects, rows);
  Progress progress("timing", options.rounds * count);
  for (int32_t round = 0; round < options.rounds; ++round) {
    meter->sample();
    const bool with_plain =
        int64_t{round} * options.plain_rounds / options.rounds != int64_t{round + 1} * options.plain_rounds / options.rounds;
    for (size_t i = 0; i < subjects.size(); ++i) {
      Subject& subject = subjects[i];
      progress.set(round * count + static_cast<int64_t>(i));
      if (!rows[i].fault.empty()) continue;
      Status status = time_runs(subject.bench.get(), subject.burst, &subject.times);
      if (status.ok() && subject.fewer) status = time_runs(subject.fewer.get(), subject.burst, &subject.fewer_times);
      if (with_plain && subject.plain) time_plain(&subject, &rows[i]);
      if (!status.ok()) rows[i].fault = status.message();
    }
  }
  for (size_t i = 0; i < rows.size(); ++i) {
    if (rows[i].fault.empty()) finish(meter->best(), &subjects[i], &rows[i]);
  }
  compare_twins(&rows);
  return rows;
}

}  // namespace headwater::cli
