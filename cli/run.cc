// headwater run: attention over each problem of a file.
#include "cli/run.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <memory>

#include "cli/check/tolerance.h"
#include "cli/device_problem.h"
#include "cli/json_file.h"
#include "cli/reencode.h"
#include "cli/terminal.h"
#include "cli/verb.h"
#include "src/core/describe.h"
#include "src/io/problem_file.h"

namespace headwater::cli {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kColdRuns = 5;
constexpr int kMinWarmRuns = 5;
constexpr int kMaxWarmRuns = 50;
constexpr double kWarmSeconds = 0.15;  // a problem's warm runs stop here once there are kMinWarmRuns

struct RunOptions {
  std::string file;
  std::string out;
  std::string backend = "cpu";
  std::string kv_format;
  std::string json;
  int64_t layer = -1;
  bool check = false;
  PlanOptions plan;
};

// Schedules once and runs for the answer, then for the times.
class Runner {
 public:
  explicit Runner(const RunOptions& options) : o_(options) {}
  Status run(io::OwnedProblem* problem, RunReport* report);

 private:
  Status prepare(io::OwnedProblem* problem, RunReport* report);
  Status measure(const Plan& plan, const Problem& problem, DeviceProblem* device, RunReport* report);
  void judge_rate(RunReport* report);

  const RunOptions& o_;
  CacheFlusher flusher_;
  std::unique_ptr<CeilingMeter> meter_;  // made for the first problem that is worth judging
};

Status Runner::prepare(io::OwnedProblem* problem, RunReport* report) {
  if (!o_.kv_format.empty()) {
    const Result<Format> format = format_option("--kv-format", o_.kv_format);
    if (!format.ok()) return format.status();
    std::string said;
    Status status = reencode(problem, {.k = *format, .v = {}, .rule = BlockScaleRule::kRoundUp}, &said);
    if (!status.ok()) return status;
    report->encoding = "KV of the file stored as " + std::string(format_info(*format).name) + (said.empty() ? "" : ", " + said);
  }
  ResolvedProblem resolved;
  Status status = validate(problem->problem, &resolved);
  if (!status.ok()) return status;
  report->name = problem->name;
  report->line = describe_line(problem->problem, resolved);
  report->detail = describe(problem->problem, resolved);
  report->work = count_work(resolved);
  for (const char* key : {"note", "text"}) {
    const auto it = problem->notes.find(key);
    if (it != problem->notes.end()) report->note += (report->note.empty() ? "" : "; ") + it->second;
  }
  return {};
}

// Memory of one plan, where the problem is.
class Workspace {
 public:
  explicit Workspace(DeviceProblem* device) : device_(device) {}
  Result<Buffer> allocate(size_t bytes) {
    if (device_ != nullptr) return device_->allocate(bytes);
    host_.emplace_back(bytes);
    if (host_.back().data() == nullptr) return Status(StatusCode::kBuffer, "no memory for schedule and scratch");
    return Buffer{host_.back().data(), host_.back().size()};
  }
  // One run, waited for.
  double seconds(const Plan& plan, const Problem& problem, Buffer schedule, Buffer scratch, Status* status) const {
    const auto begin = Clock::now();
    *status = plan.run(problem, schedule, scratch);
    if (status->ok() && device_ != nullptr) *status = device_->synchronize();
    return std::chrono::duration<double>(Clock::now() - begin).count();
  }

 private:
  DeviceProblem* device_;
  std::vector<io::AlignedBytes> host_;
};

Status Runner::measure(const Plan& plan, const Problem& problem, DeviceProblem* device, RunReport* report) {
  Workspace workspace(device);
  const Result<Buffer> schedule = workspace.allocate(plan.schedule_bytes());
  if (!schedule.ok()) return schedule.status();
  const Result<Buffer> scratch = workspace.allocate(plan.scratch_bytes());
  if (!scratch.ok()) return scratch.status();
  Status status = plan.schedule(Lengths::of(problem), *schedule);
  if (!status.ok()) return status;
  std::vector<double> cold;
  std::vector<double> warm;
  (void)workspace.seconds(plan, problem, *schedule, *scratch, &status);  // starts the workers, touches the buffers
  for (int i = 0; status.ok() && i < kColdRuns; ++i) {
    if (device == nullptr) {
      flusher_.flush();
    } else if (status = device->flush_caches(); !status.ok()) {
      break;
    }
    cold.push_back(workspace.seconds(plan, problem, *schedule, *scratch, &status));
  }
  const auto begin = Clock::now();
  for (int i = 0; status.ok() && i < kMaxWarmRuns; ++i) {
    if (i >= kMinWarmRuns && std::chrono::duration<double>(Clock::now() - begin).count() > kWarmSeconds) break;
    warm.push_back(workspace.seconds(plan, problem, *schedule, *scratch, &status));
  }
  if (status.ok()) status = plan.check(*schedule);
  report->cold = summarize(std::move(cold));
  report->warm = summarize(std::move(warm));
  return status;
}

void Runner::judge_rate(RunReport* report) {
  const double seconds = report->cold.median;
  if (seconds < kJudgedSeconds) return;
  if (report->work.bytes() >= kJudgedBytes) report->gbs = report->work.bytes() / seconds * 1e-9;
  if (report->work.flops >= kJudgedFlops) report->gflops = report->work.flops / seconds * 1e-9;
  if (o_.backend != "cpu" || (!report->gbs && !report->gflops)) return;  // ceilings are the CPU's
  if (!meter_) meter_ = std::make_unique<CeilingMeter>(report->workers);
  meter_->sample();
  report->ceilings = meter_->best();
  const double memory = report->gbs.value_or(0.0) / report->ceilings.dram_gbps;
  const double arithmetic = report->gflops.value_or(0.0) / report->ceilings.fma_gflops;
  report->memory_bound = memory >= arithmetic;
  report->roofline_share = std::max(memory, arithmetic);
}

bool has_float32(const Problem& problem) {
  bool any = problem.q.type == Type::kF32;
  for (const Source& s : problem.sources) any = any || s.k.format == Format::kF32 || (!s.shared && s.v.format == Format::kF32);
  return any;
}

CheckResult check_against_oracle(const Problem& problem, bool rounds_p) {
  const conformance::Reference reference = conformance::run_reference(problem);
  CheckResult result;
  if (!reference.status.ok()) {
    result.fault = reference.status.message();
    return result;
  }
  const conformance::Judgement judgement = conformance::judge(problem, reference, rounds_p);
  result.passed = judgement.fault.empty();
  result.fault = judgement.fault;
  result.error = judgement.error;
  result.allowed = judgement.allowed;
  result.worst_row = judgement.worst;
  return result;
}

Status Runner::run(io::OwnedProblem* owned, RunReport* report) {
  Status status = prepare(owned, report);
  if (!status.ok()) return status;
  // Bounds and explanation are read from the host's lengths; on a device the tensors' shapes would have to do.
  const bool on_device = o_.backend == "cuda";
  Result<Bounds> bounds = Bounds::of(owned->problem);
  if (!bounds.ok()) return bounds.status();
  std::unique_ptr<DeviceProblem> device;
  if (on_device) {
    Result<std::unique_ptr<DeviceProblem>> uploaded = DeviceProblem::upload(*owned, 0);
    if (!uploaded.ok()) return uploaded.status();
    device = std::move(uploaded).value();
    bounds.value().device = device->problem().device;
  }
  const Problem& problem = device ? device->problem() : owned->problem;
  const Result<Explanation> explanation = explain(problem, o_.plan);
  if (!explanation.ok()) return explanation.status();
  report->kernel = explanation->kernel;
  report->verdicts = explanation->verdicts;
  report->plan = explanation->plan;
  report->workers = o_.plan.workers > 0 ? o_.plan.workers : usable_cpus();
  if (problem.requests > 0) {
    const Result<Plan> plan = make_plan(*bounds, o_.plan);
    if (!plan.ok()) return plan.status();
    report->kernel = plan->kernel();
    status = measure(*plan, problem, device.get(), report);
    if (status.ok() && device) status = device->download(*owned);
    if (!status.ok()) return status;
    judge_rate(report);
  }
  // Kernels of tensor cores keep P in 16 bit; problems with a float32 operand run in float32.
  if (o_.check) report->check = check_against_oracle(owned->problem, on_device && !has_float32(owned->problem));
  return {};
}

// out and lse of every problem that ran.
class Outputs {
 public:
  void add(io::OwnedProblem&& owned) {
    kept_.push_back(std::make_unique<io::OwnedProblem>(std::move(owned)));
    const io::OwnedProblem& p = *kept_.back();
    const std::string prefix = p.name.empty() ? "" : p.name + ".";
    const io::DType type = p.problem.out.type == Type::kF32   ? io::DType::kF32
                           : p.problem.out.type == Type::kF16 ? io::DType::kF16
                                                              : io::DType::kBf16;
    tensors_.push_back({prefix + "out", type, {p.problem.q.total, p.problem.q.heads, p.problem.d_v()}, p.problem.out.data});
    tensors_.push_back({prefix + "lse", io::DType::kF32, {p.problem.q.total, p.problem.q.heads}, p.problem.lse.data});
  }
  [[nodiscard]] Status write(const std::string& path) const {
    return io::write_safetensors(path, tensors_, {{"note", "written by headwater run"}});
  }

 private:
  std::vector<std::unique_ptr<io::OwnedProblem>> kept_;
  std::vector<io::TensorToWrite> tensors_;
};

Status backend_usable(const std::string& name) {
  for (const BackendInfo& info : backends()) {
    if (info.name == name && !info.usable) return unsupported("--backend " + name + ": " + info.detail);
  }
  return {};
}

int run(const RunOptions& o) {
  if (const Status status = backend_usable(o.backend); !status.ok()) return fail(status);
  const Result<io::ProblemFile> file = io::ProblemFile::open(o.file);
  if (!file.ok()) return fail(file.status());
  const auto chosen = io::choose_problems(*file, o.layer);
  if (!chosen.ok()) return fail(chosen.status());
  Runner runner(o);
  Outputs outputs;
  std::vector<RunReport> reports;
  {
    Progress progress("problems", static_cast<int64_t>(chosen->size()));
    for (const size_t i : *chosen) {
      Result<io::OwnedProblem> problem = file->load(i);
      if (!problem.ok()) return fail(problem.status());
      reports.emplace_back();
      const Status status = runner.run(&problem.value(), &reports.back());
      if (!status.ok()) {
        const std::string name = file->name(i);
        return fail(o.file + ": " + name + (name.empty() ? "" : ": ") + status.message());
      }
      if (!o.out.empty()) outputs.add(std::move(problem).value());
      progress.advance();
    }
  }
  if (!o.out.empty()) {
    if (const Status status = outputs.write(o.out); !status.ok()) return fail(status);
  }
  if (!o.json.empty()) {
    if (const Status status = write_json(o.json, report_json(o.file, reports)); !status.ok()) return fail(status);
  }
  if (o.json != "-") fmt::print("{}", report_text(o.file, reports));
  for (const RunReport& r : reports) {
    if (r.check && !r.check->passed) return kCheckFailed;
  }
  return kDone;
}

}  // namespace

void register_run(CLI::App& app, Action& action) {
  auto o = std::make_shared<RunOptions>();
  CLI::App* verb = app.add_subcommand("run", "Compute attention over the tensors of a file, and say how it went");
  verb->add_option("FILE", o->file, "Problem file (safetensors; docs/problem_files.md)")->required();
  verb->add_option("-o,--output", o->out, "Write out and lse to this safetensors file")->check(check_output_path);
  verb->add_option("--backend", o->backend, "cpu or cuda")->check(CLI::IsMember({"cpu", "cuda"}))->capture_default_str();
  verb->add_option("--kv-format", o->kv_format, "Store K and V in this format first; scales are calibrated on this data");
  verb->add_flag("--check", o->check, "Compare with the float64 oracle; exit code 1 if the error is above its allowance");
  verb->add_option("--layer", o->layer, "Only layers.N of the file")->check(CLI::NonNegativeNumber);
  verb->add_option("--threads", o->plan.workers, "Worker threads (default: all that this process may use)")->check(CLI::Range(1, 4096));
  verb->add_option("--isa", o->plan.isa, "Force an instruction set: scalar, avx2, avx512, neon");
  verb->add_option("--kernel", o->plan.kernel, "Force a kernel by name (headwater info lists them)");
  verb->add_flag("--batch-invariant", o->plan.batch_invariant, "A request's bits do not depend on other requests or on the thread count");
  verb->add_option("--json", o->json, "Write the report as JSON to this file (- : standard output, and no text)")->check(check_output_path);
  verb->callback([o, &action] { action = [o] { return run(*o); }; });
}

}  // namespace headwater::cli
