// Decode and prefill on a CUDA device: graph replay, cold L2, merge included, checked against the float32 kernel first. JSON out.
//   gpu_bench SHAPES.txt [--format NAME] [--kernel NAMES] [--json FILE] [--commit NAME]
// Kernels are names parted by commas, "chosen" the default one. A shape may say workers=N: blocks of the grid, by default the planner's.
#include <cuda_runtime_api.h>
#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "headwater/headwater.h"

namespace {

using headwater::Format;
using headwater::Problem;
using headwater::Source;
using headwater::Type;
using nlohmann::json;

constexpr int64_t kColdBytes = int64_t{240} << 20;  // KV read between two uses of a buffer: four times the L2
constexpr int64_t kSampleRows = 1024;               // encoded on the host, repeated over the cache

[[noreturn]] void die(const std::string& what) {
  fmt::print(stderr, "gpu_bench: {}\n", what);
  std::exit(2);
}
void must(cudaError_t error, const char* what) {
  if (error != cudaSuccess) die(fmt::format("{}: {}", what, cudaGetErrorString(error)));
}
void must(const headwater::Status& status, const char* what) {
  if (!status.ok()) die(fmt::format("{}: {}", what, status.message()));
}

struct Shape {
  std::string name;
  std::map<std::string, std::string> values;
  [[nodiscard]] int64_t number(const char* key, int64_t otherwise) const {
    const auto at = values.find(key);
    return at == values.end() ? otherwise : std::stoll(at->second);
  }
  [[nodiscard]] double real(const char* key) const {
    const auto at = values.find(key);
    return at == values.end() ? 0.0 : std::stod(at->second);
  }
  [[nodiscard]] std::string text(const char* key, const char* otherwise) const {
    const auto at = values.find(key);
    return at == values.end() ? otherwise : at->second;
  }
};

std::vector<Shape> read_shapes(const std::string& path) {
  std::ifstream file(path);
  if (!file) die(path + ": cannot be read");
  std::vector<Shape> shapes;
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    Shape shape;
    if (!(words >> shape.name) || shape.name[0] == '#') continue;
    for (std::string word; words >> word;) {
      const size_t at = word.find('=');
      if (at == std::string::npos) die(path + ": " + word + ": must be key=value");
      shape.values[word.substr(0, at)] = word.substr(at + 1);
    }
    shapes.push_back(std::move(shape));
  }
  return shapes;
}

class Memory {  // device memory of one shape
 public:
  ~Memory() {
    for (void* block : blocks_) (void)cudaFree(block);
  }
  template <class T>
  T* take(int64_t count) {
    void* block = nullptr;
    must(cudaMalloc(&block, std::max<size_t>(256, static_cast<size_t>(count) * sizeof(T))), "cudaMalloc");
    blocks_.push_back(block);
    return static_cast<T*>(block);
  }
  template <class T>
  T* copy(const std::vector<T>& values) {
    T* block = take<T>(static_cast<int64_t>(values.size()));
    must(cudaMemcpy(block, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice), "cudaMemcpy");
    return block;
  }
  // `bytes` of device memory that repeat `sample`.
  std::byte* repeat(const std::vector<std::byte>& sample, int64_t bytes) {
    std::byte* block = take<std::byte>(bytes);
    int64_t done = std::min<int64_t>(bytes, static_cast<int64_t>(sample.size()));
    must(cudaMemcpy(block, sample.data(), static_cast<size_t>(done), cudaMemcpyHostToDevice), "cudaMemcpy");
    while (done < bytes) {
      const int64_t n = std::min(done, bytes - done);
      must(cudaMemcpy(block + done, block, static_cast<size_t>(n), cudaMemcpyDeviceToDevice), "cudaMemcpy");
      done += n;
    }
    return block;
  }

 private:
  std::vector<void*> blocks_;
};

std::mt19937& random_engine() {
  static std::mt19937 engine(20261130);
  return engine;
}

// Rows of normal values in a format, and their separate scales.
struct Sample {
  std::vector<std::byte> rows;
  std::vector<std::byte> scales;
};
Sample encode_sample(Format format, int32_t width, int64_t count) {
  std::normal_distribution<float> normal;
  const auto row = static_cast<size_t>(headwater::record_row_bytes(format, width));
  const auto scale = static_cast<size_t>(headwater::record_scale_bytes(format, width));
  Sample sample{std::vector<std::byte>(row * static_cast<size_t>(count)), std::vector<std::byte>(scale * static_cast<size_t>(count))};
  std::vector<float> values(static_cast<size_t>(width));
  for (int64_t i = 0; i < count; ++i) {
    for (float& v : values) v = normal(random_engine());
    must(headwater::encode_record(format, width, values.data(), sample.rows.data() + row * static_cast<size_t>(i),
                                  scale > 0 ? sample.scales.data() + scale * static_cast<size_t>(i) : nullptr),
         "encode_record");
  }
  return sample;
}

// One page of a planar format: records, then scales.
std::vector<std::byte> encode_page(Format format, int32_t width, int32_t page_size) {
  std::vector<std::byte> page(static_cast<size_t>(headwater::record_page_bytes(format, width, page_size)));
  const auto row = static_cast<size_t>(headwater::record_row_bytes(format, width));
  const size_t tail = format == Format::kFp8Ds584 ? 8 : 32;
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<size_t>(width));
  for (int32_t i = 0; i < page_size; ++i) {
    for (float& v : values) v = normal(random_engine());
    const auto at = static_cast<size_t>(i);
    must(headwater::encode_record(format, width, values.data(), page.data() + row * at,
                                  page.data() + row * static_cast<size_t>(page_size) + tail * at),
         "encode_record");
  }
  return page;
}

struct Case {
  Problem problem;  // of buffer set 0
  std::vector<std::vector<Source>> sets;
  int64_t kv_bytes = 0;  // read by one call
  double flops = 0.0;
  int32_t max_q_len = 1;
  int64_t max_len = 0;
};

headwater::KvTensor make_tensor(Memory* memory, Format format, int32_t width, int64_t rows, int32_t heads, int32_t page_size) {
  headwater::KvTensor t;
  t.format = format;
  t.width = width;
  if (headwater::format_info(format).planar) {
    const auto page = encode_page(format, width, page_size);
    t.data = memory->repeat(page, static_cast<int64_t>(page.size()) * (rows / page_size));
    return t;
  }
  const Sample sample = encode_sample(format, width, kSampleRows);
  t.data = memory->repeat(sample.rows, headwater::record_row_bytes(format, width) * rows * heads);
  if (!sample.scales.empty()) t.scales = memory->repeat(sample.scales, headwater::record_scale_bytes(format, width) * rows * heads);
  if (headwater::format_info(format).takes_scale && !headwater::format_info(format).scales_apart && format != Format::kQ8_0) {
    t.scale = headwater::Scale::constant(0.75F);
  }
  return t;
}

int64_t record_bytes(Format format, int32_t width) {
  if (headwater::format_info(format).planar) return headwater::record_page_bytes(format, width, 64) / 64;
  return headwater::record_row_bytes(format, width) + headwater::record_scale_bytes(format, width);
}

// Every set of sources differs in its memory, so that none of it is in the L2 when its turn comes.
Case make_case(const Shape& shape, Format format, Memory* memory) {
  Case made;
  Problem& p = made.problem;
  const int64_t batch = shape.number("batch", 1);
  const auto heads = static_cast<int32_t>(shape.number("heads", 1));
  const auto kv_heads = static_cast<int32_t>(shape.number("kv_heads", 1));
  const auto d_qk = static_cast<int32_t>(shape.number("d_qk", shape.number("d", 128)));
  const auto d_v = static_cast<int32_t>(shape.number("d_v", shape.number("d", 128)));
  const int64_t q_len = shape.number("q_len", 1);
  const int64_t topk = shape.number("topk", 0);
  const int64_t window = shape.number("window", -1);
  const int64_t kv_len = topk > 0 ? 1024 : shape.number("kv_len", 1024);
  const auto page = static_cast<int32_t>(shape.number("page", 64));
  const bool shared = shape.number("shared", 0) == 1;
  p.device = {headwater::DeviceKind::kCuda, 0};
  p.requests = batch;
  made.max_q_len = static_cast<int32_t>(q_len);
  made.max_len = kv_len;
  std::normal_distribution<float> normal;
  std::vector<uint16_t> q(static_cast<size_t>(batch * q_len * heads * d_qk));
  for (uint16_t& v : q) {
    const float f = normal(random_engine());
    uint32_t bits = 0;
    std::memcpy(&bits, &f, 4);
    v = static_cast<uint16_t>(bits >> 16);
  }
  p.q = {memory->copy(q), Type::kBf16, batch * q_len, heads, d_qk};
  std::vector<int32_t> indptr(static_cast<size_t>(batch) + 1);
  for (size_t i = 0; i < indptr.size(); ++i) indptr[i] = static_cast<int32_t>(static_cast<int64_t>(i) * q_len);
  p.qo_indptr = memory->copy(indptr);
  p.sm_scale = 1.0F / std::sqrt(static_cast<float>(d_qk));
  if (shape.number("sinks", 0) == 1) {
    std::vector<float> sinks(static_cast<size_t>(heads));
    for (float& s : sinks) s = normal(random_engine());
    p.sinks = memory->copy(sinks);
  }
  p.out = {memory->take<uint16_t>(batch * q_len * heads * d_v), Type::kBf16};
  p.lse.data = memory->take<float>(batch * q_len * heads);

  headwater::Rule rule = headwater::Rule::full();
  const std::string rule_text = shape.text("rule", "full");
  if (rule_text == "causal") rule = headwater::Rule::causal();
  if (rule_text.rfind("window:", 0) == 0) rule = headwater::Rule::window(std::stoi(rule_text.substr(7)));
  if (topk > 0) rule = headwater::Rule::window(static_cast<int32_t>(window));
  const int64_t token_bytes = record_bytes(format, d_qk) * kv_heads + (shared ? 0 : record_bytes(format, d_v) * kv_heads);
  const int64_t entries = topk > 0 ? batch * q_len * topk + batch * (window + q_len) : batch * kv_len;
  made.kv_bytes = entries * token_bytes;
  double pairs = static_cast<double>(batch * q_len) * static_cast<double>(kv_len);
  if (rule_text == "causal") pairs = static_cast<double>(batch) * static_cast<double>(q_len) * static_cast<double>(q_len + 1) / 2;
  if (topk > 0) pairs = static_cast<double>(batch * q_len) * static_cast<double>(topk + window + 1);
  if (rule_text.rfind("window:", 0) == 0) {
    pairs = 0;
    for (int64_t i = 0; i < q_len; ++i)
      pairs += static_cast<double>(std::min<int64_t>(rule.window_left, kv_len - q_len + i) + 1) * static_cast<double>(batch);
  }
  made.flops = pairs * heads * 2.0 * (d_qk + d_v);

  const int64_t rows = batch * kv_len;
  const int64_t sets = std::clamp<int64_t>(1 + kColdBytes / std::max<int64_t>(1, made.kv_bytes), 2, 40);
  headwater::Addressing a;
  std::vector<int32_t> lens(static_cast<size_t>(batch), static_cast<int32_t>(kv_len));
  if (page == 0) {
    a.kind = headwater::AddressingKind::kRagged;
    a.num_pages = rows;
    std::vector<int32_t> kv(static_cast<size_t>(batch) + 1);
    for (size_t i = 0; i < kv.size(); ++i) kv[i] = static_cast<int32_t>(static_cast<int64_t>(i) * kv_len);
    a.kv_indptr = memory->copy(kv);
  } else {
    a.kind = headwater::AddressingKind::kBlockTable;
    a.page_size = page;
    a.num_pages = rows / page;
    a.max_pages = kv_len / page;
    std::vector<int32_t> table(static_cast<size_t>(a.num_pages));
    for (size_t i = 0; i < table.size(); ++i) table[i] = static_cast<int32_t>(i);
    std::shuffle(table.begin(), table.end(), random_engine());
    a.block_table = memory->copy(table);
    a.seq_lens = memory->copy(lens);
  }
  const int64_t pool_rows = topk > 0 ? batch * 4096 : 0;
  const int32_t* indices = nullptr;
  if (topk > 0) {
    std::vector<int32_t> list(static_cast<size_t>(batch * q_len * topk));
    std::uniform_int_distribution<int32_t> slot(0, static_cast<int32_t>(pool_rows) - 1);
    for (int32_t& i : list) i = slot(random_engine());
    indices = memory->copy(list);
  }
  for (int64_t s = 0; s < sets; ++s) {
    std::vector<Source> sources;
    const auto k = make_tensor(memory, format, d_qk, rows, kv_heads, std::max(page, 1));
    if (shared) {
      sources.push_back(Source::shared_kv(k, d_v, a, rule));
      sources.back().heads = kv_heads;
    } else {
      sources.push_back(Source::separate_kv(k, make_tensor(memory, format, d_v, rows, kv_heads, std::max(page, 1)), kv_heads, a, rule));
    }
    if (topk > 0) {
      headwater::Addressing pool;
      pool.kind = headwater::AddressingKind::kPool;
      pool.page_size = page;
      pool.num_pages = pool_rows / page;
      sources.push_back(Source::shared_kv(make_tensor(memory, format, d_qk, pool_rows, 1, page), d_v, pool,
                                          headwater::Rule::gathered(indices, static_cast<int32_t>(topk))));
    }
    made.sets.push_back(std::move(sources));
  }
  p.sources = made.sets[0];
  return made;
}

struct Prepared {
  headwater::Plan plan;
  headwater::Buffer schedule;
  headwater::Buffer scratch;
};
Prepared prepare(const Case& made, const std::string& kernel, Memory* memory, int32_t workers = 0) {
  headwater::Result<headwater::Bounds> bounds = headwater::Bounds::of(made.problem);
  must(bounds.status(), "bounds");
  bounds->max_q_len = made.max_q_len;
  for (headwater::SourceBounds& s : bounds->sources) {
    if (s.rule == headwater::RuleKind::kGathered) continue;
    s.max_len = made.max_len;
    s.max_total_len = made.max_len * made.problem.requests;
  }
  headwater::PlanOptions options;
  options.kernel = kernel;
  options.workers = workers;
  headwater::Result<headwater::Plan> plan = headwater::make_plan(*bounds, options);
  must(plan.status(), "make_plan");
  Prepared prepared{*plan, {}, {}};
  prepared.schedule.bytes = plan->schedule_bytes();
  prepared.schedule.data = memory->take<std::byte>(static_cast<int64_t>(prepared.schedule.bytes));
  prepared.scratch.bytes = plan->scratch_bytes();
  prepared.scratch.data = memory->take<std::byte>(static_cast<int64_t>(prepared.scratch.bytes));
  must(cudaMemset(prepared.schedule.data, 0xff, prepared.schedule.bytes), "cudaMemset");
  must(plan->schedule(headwater::Lengths::of(made.problem), prepared.schedule, nullptr), "schedule");
  return prepared;
}

std::vector<float> run_once(const Prepared& prepared, const Problem& problem, int64_t count) {
  must(cudaMemset(problem.out.data, 0xff, static_cast<size_t>(count) * 2), "cudaMemset");
  must(prepared.plan.run(problem, prepared.schedule, prepared.scratch, nullptr), "run");
  must(prepared.plan.check(prepared.schedule, nullptr), "check");
  std::vector<uint16_t> bits(static_cast<size_t>(count));
  must(cudaMemcpy(bits.data(), problem.out.data, bits.size() * 2, cudaMemcpyDeviceToHost), "cudaMemcpy");
  std::vector<float> values(bits.size());
  for (size_t i = 0; i < bits.size(); ++i) {
    const uint32_t wide = static_cast<uint32_t>(bits[i]) << 16;
    std::memcpy(&values[i], &wide, 4);
  }
  return values;
}

double relative_error(const std::vector<float>& got, const std::vector<float>& want) {
  double error = 0.0;
  double size = 0.0;
  for (size_t i = 0; i < got.size(); ++i) {
    const double d = double{got[i]} - want[i];
    error += d * d;
    size += double{want[i]} * want[i];
  }
  return std::sqrt(error / size);  // NaN where a value was not written
}

// Median over replays of a graph of `launches` calls, microseconds a call.
template <class Call>
std::pair<double, double> time_graph(int launches, const Call& call) {
  cudaStream_t stream = nullptr;
  must(cudaStreamCreate(&stream), "cudaStreamCreate");
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t exec = nullptr;
  must(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture");
  for (int i = 0; i < launches; ++i) call(i, stream);
  must(cudaStreamEndCapture(stream, &graph), "capture");
  must(cudaGraphInstantiate(&exec, graph, 0), "instantiate");
  cudaEvent_t begin = nullptr;
  cudaEvent_t end = nullptr;
  must(cudaEventCreate(&begin), "event");
  must(cudaEventCreate(&end), "event");
  std::vector<double> times;
  for (int i = 0; i < 12; ++i) {
    must(cudaEventRecord(begin, stream), "event");
    must(cudaGraphLaunch(exec, stream), "replay");
    must(cudaEventRecord(end, stream), "event");
    must(cudaEventSynchronize(end), "replay");
    float ms = 0.0F;
    must(cudaEventElapsedTime(&ms, begin, end), "event");
    if (i >= 2) times.push_back(1e3 * ms / launches);
  }
  std::sort(times.begin(), times.end());
  (void)cudaGraphExecDestroy(exec);
  (void)cudaGraphDestroy(graph);
  (void)cudaEventDestroy(begin);
  (void)cudaEventDestroy(end);
  (void)cudaStreamDestroy(stream);
  return {times[times.size() / 2], times.back() - times.front()};
}

// Where a wrong result differs: rows by error, and the first elements of the first.
void print_differences(const std::vector<float>& got, const std::vector<float>& want, int64_t heads, int64_t d_v) {
  int64_t wrong = 0;
  for (int64_t row = 0; row < static_cast<int64_t>(want.size()) / d_v; ++row) {
    double error = 0.0;
    double size = 0.0;
    int64_t first = -1;
    for (int64_t c = 0; c < d_v; ++c) {
      const auto at = static_cast<size_t>(row * d_v + c);
      const double d = double{got[at]} - want[at];
      error += d * d;
      size += double{want[at]} * want[at];
      if (first < 0 && !(std::fabs(d) <= 0.02 * (1.0 + std::fabs(want[at])))) first = c;
    }
    if (std::sqrt(error) <= 1e-2 * std::sqrt(size)) continue;
    if (++wrong > 6) continue;
    fmt::print("    token {} head {}: relative error {:.2e}, first column off {}:", row / heads, row % heads, std::sqrt(error / size),
               first);
    for (int64_t c = std::max<int64_t>(first, 0); c < std::min<int64_t>(d_v, std::max<int64_t>(first, 0) + 4); ++c) {
      fmt::print(" {:.4f} ({:.4f})", got[static_cast<size_t>(row * d_v + c)], want[static_cast<size_t>(row * d_v + c)]);
    }
    fmt::print("\n");
  }
  fmt::print("    {} rows of {} are wrong\n", wrong, static_cast<int64_t>(want.size()) / d_v);
}

// One row a kernel; false where a result is wrong.
bool bench(const Shape& shape, Format format, const std::vector<std::string>& kernels, json* rows) {
  Memory memory;
  const Case made = make_case(shape, format, &memory);
  const int64_t count = made.problem.q.total * made.problem.q.heads * made.problem.d_v();
  std::vector<float> want;
  if (shape.number("check", 1) == 1) want = run_once(prepare(made, "attention_cuda_simt", &memory), made.problem, count);
  bool right = true;
  for (const std::string& kernel : kernels) {
    const Prepared prepared = prepare(made, kernel, &memory, static_cast<int32_t>(shape.number("workers", 0)));
    const std::vector<float> got = run_once(prepared, made.problem, count);
    const double error = want.empty() ? 0.0 : relative_error(got, want);
    const auto sets = static_cast<int>(made.sets.size());
    const int launches = std::max(sets, made.flops > 1e11 || made.kv_bytes > (int64_t{1} << 28) ? sets : 20);
    const auto [us, spread] = time_graph(launches, [&](int i, cudaStream_t stream) {
      Problem p = made.problem;
      p.sources = made.sets[static_cast<size_t>(i % sets)];
      must(prepared.plan.run(p, prepared.schedule, prepared.scratch, stream), "run");
    });
    const auto [schedule_us, schedule_spread] = time_graph(20, [&](int, cudaStream_t stream) {
      must(prepared.plan.schedule(headwater::Lengths::of(made.problem), prepared.schedule, stream), "schedule");
    });
    const double gbps = static_cast<double>(made.kv_bytes) / us * 1e-3;
    const double tflops = made.flops / us * 1e-6;
    const double peer = shape.real("peer_us");
    fmt::print(
        "{:<14} {:<7} {:<30} {:>8.1f} us +-{:>5.1f} {:>6.0f} GB/s {:>6.1f} TFLOP/s  peer {:>6.1f} ({:.2f}x)  schedule {:>5.1f} us  error "
        "{:.1e}\n",
        shape.name, headwater::format_info(format).name, prepared.plan.kernel(), us, spread, gbps, tflops, peer, peer > 0 ? us / peer : 0.0,
        schedule_us, error);
    if (!(error < 5e-3)) {
      print_differences(got, want, made.problem.q.heads, made.problem.d_v());
      right = false;
    }
    std::fflush(stdout);
    rows->push_back({{"shape", shape.name},
                     {"format", headwater::format_info(format).name},
                     {"kernel", prepared.plan.kernel()},
                     {"us", us},
                     {"spread_us", spread},
                     {"gb_per_s", gbps},
                     {"tflop_per_s", tflops},
                     {"peer_us", peer},
                     {"schedule_us", schedule_us},
                     {"error_to_float32_kernel", error},
                     {"kv_bytes", made.kv_bytes}});
  }
  return right;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) die("usage: gpu_bench SHAPES.txt [--format NAME] [--kernel NAME,chosen,...] [--json FILE] [--commit NAME]");
  std::map<std::string, std::string> options;
  for (int i = 2; i + 1 < argc; i += 2) options[argv[i]] = argv[i + 1];
  cudaDeviceProp device;
  must(cudaGetDeviceProperties(&device, 0), "device");
  std::vector<std::string> kernels;  // "": the chooser's
  std::istringstream names(options["--kernel"]);
  for (std::string name; std::getline(names, name, ',');) kernels.push_back(name == "chosen" ? "" : name);
  if (kernels.empty()) kernels.emplace_back();
  json rows = json::array();
  bool right = true;
  const auto write = [&] {
    if (options.count("--json") == 0) return;
    std::ofstream file(options["--json"]);
    file << json{{"device", device.name}, {"commit", options["--commit"]}, {"shapes", argv[1]}, {"rows", rows}}.dump(1) << "\n";
  };
  for (const Shape& shape : read_shapes(argv[1])) {
    const std::string name = options.count("--format") > 0 ? options["--format"] : shape.text("format", "bf16");
    const auto format = headwater::format_by_name(name);
    if (!format) die(name + ": no such format");
    right = bench(shape, *format, kernels, &rows) && right;
    write();  // what is there, should a later shape not end
  }
  return right ? 0 : 1;
}
