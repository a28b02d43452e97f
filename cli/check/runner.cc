#include "cli/check/runner.h"

#include <sched.h>

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <mutex>
#include <thread>

#include "cli/check/tolerance.h"
#include "src/core/resolved.h"

#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

namespace headwater::conformance {

extern const char* const kUnsupportedList;  // docs/unsupported.txt, made by CMakeLists.txt

namespace {

// A ParallelFor that runs tasks one after another in shuffled order, or all at once on threads of their own.
struct TaskOrder {
  uint64_t seed = 0;
  bool threads = false;

  static void run(void* context, int32_t tasks, void (*body)(void* arg, int32_t task), void* arg) {
    auto* self = static_cast<TaskOrder*>(context);
    std::vector<int32_t> order(static_cast<size_t>(tasks));
    for (int32_t i = 0; i < tasks; ++i) order[static_cast<size_t>(i)] = i;
    Random random(mix(self->seed, 5));
    random.shuffle(&order);
    if (!self->threads) {
      for (const int32_t task : order) body(arg, task);
      return;
    }
    std::vector<std::thread> running;
    running.reserve(order.size());
    for (const int32_t task : order) running.emplace_back([=] { body(arg, task); });
    for (std::thread& thread : running) thread.join();
  }
};

// The calling thread with FTZ and DAZ set, as a host application may have left it. Only where the machine can say so.
class FlushEnv {
 public:
#if defined(__SSE2__)
  explicit FlushEnv(bool on) : saved_(_mm_getcsr()) {
    if (on) _mm_setcsr(saved_ | 0x8040U);
  }
  ~FlushEnv() { _mm_setcsr(saved_); }

 private:
  unsigned saved_;
#else
  explicit FlushEnv(bool /*on*/) {}
#endif
 public:
  FlushEnv(const FlushEnv&) = delete;
  FlushEnv& operator=(const FlushEnv&) = delete;
};

struct Outcome {
  Status status;
  std::string fault;  // guards, check
};

// Schedules and runs in buffers of exactly the promised size between guards.
Outcome run_plan(const Problem& problem, const Bounds& bounds, const PlanOptions& options, uint8_t poison) {
  Result<Plan> plan = make_plan(bounds, options);
  if (!plan.ok()) return {plan.status(), {}};
  Guarded schedule(plan->schedule_bytes(), 0);
  Guarded scratch(plan->scratch_bytes(), 0);
  schedule.allow(0, schedule.bytes());
  scratch.allow(0, scratch.bytes());
  schedule.fill(poison);
  scratch.fill(poison);
  const Buffer schedule_buf{schedule.data(), schedule.bytes()};
  if (const Status status = plan->schedule(Lengths::of(problem), schedule_buf); !status.ok()) return {status, {}};
  if (const Status status = plan->run(problem, schedule_buf, {scratch.data(), scratch.bytes()}); !status.ok()) return {status, {}};
  if (const Status status = plan->check(schedule_buf); !status.ok()) return {{}, "check after run: " + status.message()};
  if (const std::string where = schedule.damage(); !where.empty()) return {{}, "beside the schedule buffer, " + where};
  if (const std::string where = scratch.damage(); !where.empty()) return {{}, "beside the scratch buffer, " + where};
  return {};
}

Bounds loosened(Bounds bounds, Random* random) {
  bounds.max_requests += random->integer(1, 9);
  bounds.max_total_q += random->integer(1, 40);
  bounds.max_q_len += static_cast<int32_t>(random->integer(0, 30));
  bounds.max_total_q = std::max<int64_t>(bounds.max_total_q, bounds.max_q_len);
  for (SourceBounds& s : bounds.sources) {
    if (s.rule != RuleKind::kGathered) s.max_len += random->integer(1, 700);
    s.max_total_len = 0;
  }
  return bounds;
}

Outcome run_path(const Problem& problem, int32_t path, const PlanOptions& options, uint8_t poison, uint64_t seed) {
  if (path == choice::kAttend) return {attend(problem, options), {}};
  Result<Bounds> bounds = Bounds::of(problem);
  if (!bounds.ok()) return {bounds.status(), {}};
  Random random(seed);
  return run_plan(problem, path == choice::kLoosePlan ? loosened(*bounds, &random) : *bounds, options, poison);
}

// The bytes of both outputs.
struct Bits {
  std::vector<std::byte> out;
  std::vector<std::byte> lse;
  friend bool operator==(const Bits&, const Bits&) = default;
};

// Fills the outputs with a pattern, runs, and looks at the guards.
Outcome run_guarded(Case* made, const Problem& problem, int32_t path, const PlanOptions& options, uint8_t poison, Bits* bits) {
  made->out.fill(poison);
  made->lse.fill(poison);
  const FlushEnv environment(made->spec.at(kFloatEnv) == choice::kFlushEnv);
  Outcome outcome = run_path(problem, path, options, poison, mix(made->seed, 6, static_cast<uint64_t>(made->index)));
  if (!outcome.status.ok() || !outcome.fault.empty()) return outcome;
  if (const std::string where = made->out.damage(); !where.empty()) outcome.fault = "beside out, " + where;
  if (const std::string where = made->lse.damage(); !where.empty()) outcome.fault = "beside lse, " + where;
  *bits = {made->out.written(), made->lse.written()};
  return outcome;
}

// Request b of a problem as a problem of its own, in the same memory.
struct Alone {
  Problem problem;
  std::vector<Source> sources;

  Alone(const Problem& whole, int64_t b) : problem(whole), sources(whole.sources.begin(), whole.sources.end()) {
    const auto skip = [b](auto** pointer, int64_t count = 1) { *pointer = *pointer ? *pointer + b * count : nullptr; };
    problem.requests = 1;
    skip(&problem.qo_indptr);
    skip(&problem.context_lens);
    if (problem.sinks) skip(&problem.sinks, problem.sinks_request_stride);
    if (problem.lse.data && problem.lse.request_stride != kDense) skip(&problem.lse.data, problem.lse.request_stride);
    for (Source& s : sources) {
      Addressing& a = s.addressing;
      skip(&a.kv_indptr);
      skip(&a.block_table, a.block_table_stride == kDense ? a.max_pages : a.block_table_stride);
      skip(&a.seq_lens);
      skip(&a.kv_last_page_len);
      skip(&s.first_position);
      skip(&s.position_stride);
    }
    problem.sources = sources;
  }
};

// Bytes of request b's rows, out and lse.
Bits request_bits(const Case& made, int64_t b) {
  Bits bits;
  ResolvedProblem p;
  if (!validate(made.problem, &p).ok()) return bits;
  const auto take = [](const std::byte* at, size_t bytes, std::vector<std::byte>* into) { into->insert(into->end(), at, at + bytes); };
  for (int64_t row = p.qo_indptr[b]; row < p.qo_indptr[b + 1]; ++row) {
    for (int32_t h = 0; h < p.heads; ++h) {
      take(p.out + row * p.out_row_stride + h * p.out_head_stride,
           static_cast<size_t>(p.d_v) * static_cast<size_t>(type_bits(p.out_type) / 8), &bits.out);
      if (p.lse) take(reinterpret_cast<const std::byte*>(p.lse + lse_offset(p, b, row - p.qo_indptr[b], row, h)), sizeof(float), &bits.lse);
    }
  }
  return bits;
}

// batch_invariant: the same bits with other workers and bounds, and for a request alone.
std::string check_invariance(Case* made, const Problem& problem, const PlanOptions& options, const Bits& bits,
                             const std::vector<Bits>& by_request) {
  Random random(mix(made->seed, 7, static_cast<uint64_t>(made->index)));
  PlanOptions other = options;
  other.workers = options.workers % 7 + 1;
  Bits again;
  Outcome outcome = run_guarded(made, problem, choice::kLoosePlan, other, 0x3c, &again);
  // attend() of no requests needs no kernel; a plan for them may be refused.
  if (made->problem.requests == 0 && outcome.status.code() == StatusCode::kUnsupported) return {};
  if (!outcome.status.ok()) return "with looser bounds and " + std::to_string(other.workers) + " workers: " + outcome.status.message();
  if (!outcome.fault.empty()) return outcome.fault;
  if (!(again == bits)) return "other bits with looser bounds and " + std::to_string(other.workers) + " workers, in batch_invariant mode";
  if (made->problem.requests == 0) return {};
  const int64_t b = random.integer(0, made->problem.requests - 1);
  const Alone alone(problem, b);
  outcome = run_guarded(made, alone.problem, static_cast<int32_t>(random.integer(0, 2)), other, 0xc3, &again);
  if (!outcome.status.ok()) return "request " + std::to_string(b) + " alone: " + outcome.status.message();
  if (!outcome.fault.empty()) return "request " + std::to_string(b) + " alone: " + outcome.fault;
  if (!(request_bits(*made, b) == by_request[static_cast<size_t>(b)]))
    return "other bits for request " + std::to_string(b) + " alone, in batch_invariant mode";
  for (int64_t other_b = 0; other_b < made->problem.requests; ++other_b) {
    const Bits untouched = request_bits(*made, other_b);
    const auto is_fill = [](std::byte x) { return x == std::byte{0xc3}; };
    if (other_b != b && !(std::all_of(untouched.out.begin(), untouched.out.end(), is_fill) &&
                          std::all_of(untouched.lse.begin(), untouched.lse.end(), is_fill))) {
      return "request " + std::to_string(b) + " alone wrote rows of request " + std::to_string(other_b);
    }
  }
  return {};
}

// Tensor core kernels round P to 16 bit; float32 queries or caches run in float32.
bool has_float32(const Problem& problem) {
  bool any = problem.q.type == Type::kF32;
  for (const Source& s : problem.sources) any = any || s.k.format == Format::kF32 || (!s.shared && s.v.format == Format::kF32);
  return any;
}

// Runs, runs again, compares with the oracle; the message of what is wrong, or the refusal.
std::string examine(Case* made, const Device& device, PlanOptions options, CaseResult* result) {
  const Spec& spec = made->spec;
  TaskOrder order{mix(made->seed, 8, static_cast<uint64_t>(made->index)), spec.at(kPool) == choice::kThreads};
  if (spec.at(kPool) != choice::kOpenMp) options.parallel_for = {TaskOrder::run, &order};
  options.workers = spec.at(kWorkers) + 1;
  options.batch_invariant = spec.at(kInvariant) == 1;
  Problem problem = made->problem;  // judged as it is, on the host
  problem.device = device;
  if (device.kind == DeviceKind::kCuda && made->index % 3 == 0) options.workers = 0;  // the whole device
  Bits first;
  Outcome outcome = run_guarded(made, problem, spec.at(kPath), options, 0xff, &first);
  if (outcome.status.code() == StatusCode::kUnsupported) {
    result->verdict = CaseResult::Verdict::kRefused;
    return outcome.status.message();
  }
  if (!outcome.status.ok()) return "refused: " + outcome.status.message();
  if (!outcome.fault.empty()) return outcome.fault;
  int64_t tile = kTile;
  if (const Result<Explanation> plan = explain(made->problem, options); plan.ok()) {
    result->facts.split = plan->split_blocks > 0;
    for (const std::string& line : plan->plan) std::sscanf(line.c_str(), "tiles of %" SCNd64, &tile);
  }
  Bits second;
  order.seed ^= 0x55;
  outcome = run_guarded(made, problem, spec.at(kPath), options, 0xa5, &second);
  if (!outcome.status.ok()) return "refused the second time: " + outcome.status.message();
  if (!outcome.fault.empty()) return outcome.fault;

  const Reference reference = run_reference(made->problem);
  if (!reference.status.ok()) return "the oracle refused: " + reference.status.message();
  const Judgement verdict = judge(made->problem, reference, device.kind == DeviceKind::kCuda && !has_float32(made->problem));
  result->worst = verdict.worst;
  for (const int64_t visible : reference.visible) result->facts.is_long = result->facts.is_long || visible > 3 * tile;
  if (!verdict.fault.empty()) return verdict.fault;
  if (!(first == second)) return "other bits when run again (or bytes that were never written)";
  if (!options.batch_invariant) return {};
  std::vector<Bits> by_request;
  for (int64_t b = 0; b < made->problem.requests; ++b) by_request.push_back(request_bits(*made, b));
  return check_invariance(made, problem, options, second, by_request);
}

int32_t usable_threads() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) != 0) return 1;
  return std::max(CPU_COUNT(&set), 1);
}

// `*` in a pattern stands for anything; the pattern may match anywhere.
bool matches(const std::string& pattern, const std::string& text) {
  size_t at = 0;
  size_t begin = 0;
  while (begin <= pattern.size()) {
    const size_t end = std::min(pattern.find('*', begin), pattern.size());
    const std::string part = pattern.substr(begin, end - begin);
    const size_t found = text.find(part, at);
    if (found == std::string::npos) return false;
    at = found + part.size();
    begin = end + 1;
  }
  return true;
}

}  // namespace

std::vector<std::string> usable_isas() {
  std::vector<std::string> isas;
  for (const KernelInfo& kernel : kernels()) {
    if (kernel.backend != "cpu" || !kernel.usable) continue;
    const std::string isa = kernel.name.substr(kernel.name.rfind('_') + 1);
    if (std::find(isas.begin(), isas.end(), isa) == isas.end()) isas.push_back(isa);
  }
  return isas;
}

bool is_listed_refusal(const std::string& message) {
  const std::string list = kUnsupportedList;
  size_t begin = 0;
  while (begin < list.size()) {
    const size_t end = std::min(list.find('\n', begin), list.size());
    const std::string line = list.substr(begin, end - begin);
    begin = end + 1;
    if (line.empty() || line[0] == '#') continue;
    if (matches(line, message)) return true;
  }
  return false;
}

CaseResult run_case(const Spec& spec, const CheckOptions& options, int64_t index, const std::string& isa) {
  CaseResult result;
  result.index = index;
  result.facts.isa = isa;
  const std::unique_ptr<Case> made = build_case(spec, options.seed, index);
  result.description = made->describe();
  result.facts.boundary = made->boundary_placed;
  PlanOptions plan_options;
  plan_options.isa = isa;
  plan_options.kernel = options.kernel;
  if (made->status.ok()) {
    const Device device{options.backend == "cpu" ? DeviceKind::kCpu : DeviceKind::kCuda, 0};
    result.message = examine(made.get(), device, plan_options, &result);
  } else {
    result.message = "refused as invalid: " + made->status.message();
  }
  result.facts.refused = result.verdict == CaseResult::Verdict::kRefused;
  if (!result.message.empty() && !result.facts.refused) result.verdict = CaseResult::Verdict::kFailed;
  return result;
}

std::string reproduction(const CheckOptions& options, const CaseResult& result) {
  std::string line = "headwater check --seed " + std::to_string(options.seed) + " --case " + std::to_string(result.index);
  if (options.backend != "cpu") line += " --backend " + options.backend;
  if (!result.facts.isa.empty()) line += " --isa " + result.facts.isa;
  if (!options.kernel.empty()) line += " --kernel " + options.kernel;
  for (const std::string& name : options.with) line += " --with " + name;
  return line;
}

namespace {

// Empty, or why the options cannot be run.
std::string check_options(const CheckOptions& options, std::vector<std::string>* isas) {
  for (const std::string& name : options.with) {
    const int32_t feature = feature_by_name(name);
    if (feature < 0) return "--with " + name + ": no such feature";
    for (const std::string& other : options.with) {
      if (other != name && feature_by_name(other) >= 0 && !legal_pair(feature, feature_by_name(other))) {
        return std::string("--with ").append(name).append(": cannot stand with ").append(other);
      }
    }
  }
  if (options.cases < 1) return "--cases " + std::to_string(options.cases) + ": must be at least 1";
  bool known = false;
  for (const BackendInfo& backend : backends()) {
    if (backend.name != options.backend) continue;
    known = true;
    if (!backend.usable) return "--backend " + backend.name + ": cannot run here: " + backend.detail;
  }
  if (!known) return "--backend " + options.backend + ": no such backend";
  const bool on_cpu = options.backend == "cpu";
  if (!place_cases(on_cpu ? DeviceKind::kCpu : DeviceKind::kCuda)) return "--backend " + options.backend + ": not in this build";
  *isas = on_cpu ? usable_isas() : std::vector<std::string>{""};
  if (!on_cpu && !options.isa.empty()) return "--isa " + options.isa + ": only the cpu backend has instruction set levels";
  if (!options.kernel.empty()) {
    for (const KernelInfo& kernel : kernels()) {
      if (kernel.name == options.kernel && kernel.usable) {
        *isas = {""};
        return {};
      }
    }
    return "--kernel " + options.kernel + ": no such kernel on this machine";
  }
  if (options.isa.empty()) return {};
  if (std::find(isas->begin(), isas->end(), options.isa) == isas->end()) {
    std::string all;
    for (const std::string& isa : *isas) all += (all.empty() ? "" : ", ") + isa;
    return "--isa " + options.isa + ": this machine can run " + all;
  }
  *isas = {options.isa};
  return {};
}

}  // namespace

Report run_cases(const CheckOptions& options, const std::function<void(int64_t done)>& progress) {
  Report report;
  report.error = check_options(options, &report.isas);
  if (!report.error.empty()) return report;
  std::vector<int32_t> always;
  for (const std::string& name : options.with) always.push_back(feature_by_name(name));
  SpecStream stream(options.seed, always);
  std::mutex mutex;  // guards stream, report, next and done
  int64_t next = 0;
  int64_t done = 0;
  const int64_t end = options.only_case >= 0 ? options.only_case + 1 : options.cases;
  const auto work = [&] {
    for (;;) {
      Spec spec;
      int64_t index = 0;
      {
        const std::lock_guard<std::mutex> lock(mutex);
        do {
          if (next >= end || (options.fail_fast && report.failed > 0)) return;
          index = next++;
          spec = stream.next();
        } while (options.only_case >= 0 && index != options.only_case);
      }
      CaseResult result = run_case(spec, options, index, report.isas[static_cast<size_t>(index) % report.isas.size()]);
      const std::lock_guard<std::mutex> lock(mutex);
      report.coverage.add(spec, result.facts);
      if (result.worst > report.worst) report.worst_case = index;
      report.worst = std::max(report.worst, result.worst);
      if (result.verdict == CaseResult::Verdict::kRefused) {
        ++report.refused;
        // A kernel asked for by name refuses what it is not made for.
        if (options.kernel.empty() && !is_listed_refusal(result.message) && report.unlisted_refusals.size() < kMaxFailures) {
          report.unlisted_refusals.push_back(result.message + "  (" + reproduction(options, result) + ")");
        }
      } else if (result.verdict == CaseResult::Verdict::kFailed) {
        ++report.failed;
        report.failures.push_back(std::move(result));
      }
      if (progress) progress(++done);
    }
  };
  std::vector<std::thread> threads;
  const int32_t count = options.only_case >= 0 ? 1 : options.threads > 0 ? options.threads : usable_threads();
  for (int32_t i = 1; i < count; ++i) threads.emplace_back(work);
  work();
  for (std::thread& thread : threads) thread.join();
  std::sort(report.failures.begin(), report.failures.end(), [](const CaseResult& a, const CaseResult& b) { return a.index < b.index; });
  if (report.failures.size() > kMaxFailures) report.failures.resize(kMaxFailures);
  report.shortfalls = report.coverage.shortfalls(options.isa.empty() && options.kernel.empty() ? report.isas : std::vector<std::string>{});
  for (const auto& [a, b] : stream.unreachable())
    report.shortfalls.push_back("no case could hold " + feature_name(a) + " with " + feature_name(b));
  report.enforced =
      options.only_case < 0 && options.with.empty() && options.cases >= kEnforcedFrom && report.coverage.cases() == options.cases;
  return report;
}

}  // namespace headwater::conformance
