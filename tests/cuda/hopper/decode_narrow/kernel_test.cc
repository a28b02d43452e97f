// Small decode problems on the device, each narrow kernel against the float32 kernel: where the two differ, coordinates are printed.
// Skipped where no device is, or none that takes the kernels.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "headwater/headwater.h"
#include "src/cuda/device.h"
#include "src/cuda/select.h"

namespace headwater::cuda {
namespace {

struct Work {
  std::string name;
  std::vector<int32_t> lens;
  int32_t heads = 16;
  int32_t kv_heads = 1;
  int32_t q_len = 1;
  int32_t page = 64;  // 0: ragged
  Rule rule = Rule::full();
  int32_t workers = 0;
};

struct Widths {
  Format format = Format::kBf16;
  int32_t d_qk = 576;
  int32_t d_v = 512;
  bool shared = true;
};

std::vector<Work> works() {
  std::vector<Work> list;
  for (const int32_t n : {1, 2, 5, 8, 31, 32, 33, 63, 64, 65, 100, 257, 1000}) list.push_back({"length " + std::to_string(n), {n}});
  for (const int32_t h : {1, 3, 5, 8}) list.push_back({std::to_string(h) + " heads", {77, 130}, h});
  for (const int32_t page : {0, 1, 3, 4, 16, 48, 256}) list.push_back({"page " + std::to_string(page), {77, 300, 1}, 16, 1, 1, page});
  list.push_back({"causal tokens", {3, 40, 301}, 4, 1, 4, 16, Rule::causal()});
  list.push_back({"window", {3, 40, 301}, 4, 1, 4, 16, Rule::window(33)});
  list.push_back({"window decode", {700, 90}, 16, 1, 1, 64, Rule::window(200)});
  list.push_back({"empty requests", {0, 5, 0, 400, 0}});
  list.push_back({"uneven batch", {700, 3000, 64, 1, 0, 2047, 96}});
  list.push_back({"uneven batch, 3 workers", {700, 3000, 64, 1, 0, 2047, 96}, 16, 1, 1, 64, Rule::causal(), 3});
  list.push_back({"two KV heads", {100, 333}, 16, 2});
  list.push_back({"long", {9000, 8191}, 16, 1, 1, 64, Rule::causal()});
  return list;
}

class NarrowKernel : public ::testing::TestWithParam<std::string> {
 protected:
  void TearDown() override {
    for (void* block : blocks_) (void)cudaFree(block);
  }
  template <class T>
  T* take(size_t count) {
    void* block = nullptr;
    EXPECT_EQ(cudaMalloc(&block, std::max<size_t>(256, count * sizeof(T))), cudaSuccess);
    EXPECT_EQ(cudaMemset(block, 0xff, std::max<size_t>(256, count * sizeof(T))), cudaSuccess);
    blocks_.push_back(block);
    return static_cast<T*>(block);
  }
  template <class T>
  T* copy(const std::vector<T>& values) {
    T* block = take<T>(values.size());
    EXPECT_EQ(cudaMemcpy(block, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice), cudaSuccess);
    return block;
  }
  template <class T>
  static std::vector<T> fetch(const T* block, size_t count) {
    std::vector<T> values(count);
    EXPECT_EQ(cudaMemcpy(values.data(), block, count * sizeof(T), cudaMemcpyDeviceToHost), cudaSuccess);
    return values;
  }

  // A cache whose live records are random; everything else is NaN.
  std::byte* cache(Format format, int32_t width, int32_t kv_heads, const std::vector<int64_t>& live, int64_t rows) {
    std::normal_distribution<float> normal;
    const auto record = static_cast<size_t>(record_row_bytes(format, width));
    std::vector<std::byte> bytes(record * static_cast<size_t>(rows * kv_heads), std::byte{0xff});
    std::vector<float> values(static_cast<size_t>(width));
    for (const int64_t row : live) {
      for (int32_t h = 0; h < kv_heads; ++h) {
        for (float& v : values) v = normal(engine_);
        std::byte* at = bytes.data() + record * static_cast<size_t>(row * kv_heads + h);
        EXPECT_TRUE(encode_record(format, width, values.data(), at, nullptr).ok());
      }
    }
    return copy(bytes);
  }

  Problem make(const Work& w, const Widths& widths, std::vector<Source>* sources) {
    const auto requests = static_cast<int64_t>(w.lens.size());
    Addressing a;
    std::vector<int64_t> live;
    int64_t rows = 0;
    if (w.page == 0) {
      a.kind = AddressingKind::kRagged;
      std::vector<int32_t> indptr{0};
      for (const int32_t n : w.lens) indptr.push_back(indptr.back() + n);
      rows = a.num_pages = indptr.back();
      for (int64_t r = 0; r < rows; ++r) live.push_back(r);
      a.kv_indptr = copy(indptr);
    } else {
      a.kind = AddressingKind::kBlockTable;
      a.page_size = w.page;
      a.max_pages = (*std::max_element(w.lens.begin(), w.lens.end()) + w.page - 1) / w.page;
      a.num_pages = a.max_pages * requests;
      rows = a.num_pages * w.page;
      std::vector<int32_t> table(static_cast<size_t>(a.num_pages));
      for (size_t i = 0; i < table.size(); ++i) table[i] = static_cast<int32_t>(i);
      std::shuffle(table.begin(), table.end(), engine_);
      for (int64_t b = 0; b < requests; ++b) {
        for (int64_t j = 0; j < w.lens[static_cast<size_t>(b)]; ++j)
          live.push_back(int64_t{table[static_cast<size_t>(b * a.max_pages + j / w.page)]} * w.page + j % w.page);
      }
      a.block_table = copy(table);
      a.seq_lens = copy(w.lens);
    }
    KvTensor k;
    k.format = widths.format;
    k.width = widths.d_qk;
    k.data = cache(k.format, k.width, w.kv_heads, live, rows);
    if (format_info(k.format).takes_scale) k.scale = Scale::constant(0.75F);
    if (widths.shared) {
      sources->push_back(Source::shared_kv(k, widths.d_v, a, w.rule));
      sources->back().heads = w.kv_heads;
    } else {
      KvTensor v = k;
      v.width = widths.d_v;
      v.data = cache(v.format, v.width, w.kv_heads, live, rows);
      sources->push_back(Source::separate_kv(k, v, w.kv_heads, a, w.rule));
    }
    const int64_t total = requests * w.q_len;
    std::normal_distribution<float> normal;
    std::vector<uint16_t> q(static_cast<size_t>(total * w.heads * widths.d_qk));
    for (uint16_t& v : q) {
      const float f = normal(engine_);
      uint32_t bits = 0;
      std::memcpy(&bits, &f, 4);
      v = static_cast<uint16_t>(bits >> 16);
    }
    std::vector<int32_t> qo(static_cast<size_t>(requests) + 1);
    for (size_t i = 0; i < qo.size(); ++i) qo[i] = static_cast<int32_t>(i) * w.q_len;
    Problem p;
    p.device = {DeviceKind::kCuda, 0};
    p.q = {copy(q), Type::kBf16, total, w.heads, widths.d_qk};
    p.qo_indptr = copy(qo);
    p.requests = requests;
    p.sm_scale = 1.0F / std::sqrt(static_cast<float>(widths.d_qk));
    p.out = {take<float>(static_cast<size_t>(total * w.heads * widths.d_v)), Type::kF32};
    p.lse.data = take<float>(static_cast<size_t>(total * w.heads));
    return p;
  }

  struct Outputs {
    std::vector<float> out;
    std::vector<float> lse;
  };
  Outputs run(const Problem& p, const Work& w, const Widths& widths, const std::string& kernel, std::string* fault) {
    const auto rows = static_cast<size_t>(p.q.total * w.heads);
    const auto values = rows * static_cast<size_t>(widths.d_v);
    EXPECT_EQ(cudaMemset(p.out.data, 0xff, values * 4), cudaSuccess);
    EXPECT_EQ(cudaMemset(p.lse.data, 0xff, rows * 4), cudaSuccess);
    Bounds bounds = *Bounds::of(p);
    bounds.max_q_len = w.q_len;
    PlanOptions options;
    options.kernel = kernel;
    options.workers = w.workers;
    const Result<Plan> plan = make_plan(bounds, options);
    if (!plan.ok()) {
      *fault = plan.status().message();
      return {};
    }
    Buffer schedule{take<std::byte>(plan->schedule_bytes()), plan->schedule_bytes()};
    Buffer scratch{take<std::byte>(plan->scratch_bytes()), plan->scratch_bytes()};
    Status status = plan->schedule(Lengths::of(p), schedule);
    if (status.ok()) status = plan->run(p, schedule, scratch);
    if (status.ok()) status = plan->check(schedule);
    if (!status.ok()) {
      *fault = "run: " + status.message() + " / " + cudaGetErrorString(cudaPeekAtLastError());
      return {};
    }
    return {fetch(static_cast<const float*>(p.out.data), values), fetch(p.lse.data, rows)};
  }

  // Rows whose error is out of bounds, each with its worst column; the first of them in full.
  static void compare(const Work& w, const Widths& widths, const Outputs& got, const Outputs& want) {
    int32_t reported = 0;
    const auto d_v = static_cast<size_t>(widths.d_v);
    for (size_t row = 0; row < want.lse.size(); ++row) {
      double error = 0.0;
      double size = 0.0;
      size_t worst = 0;
      size_t wrong = 0;
      for (size_t c = 0; c < d_v; ++c) {
        const double x = got.out[row * d_v + c];
        const double y = want.out[row * d_v + c];
        error += (x - y) * (x - y);
        size += y * y;
        if (!(std::fabs(x - y) <= 0.02 + 0.02 * std::fabs(y))) {
          if (wrong++ == 0) worst = c;
        }
      }
      const bool empty = want.lse[row] == -INFINITY;
      const bool lse_right =
          empty ? got.lse[row] == -INFINITY : std::fabs(got.lse[row] - want.lse[row]) <= 3e-5 * (1 + std::fabs(want.lse[row]));
      const bool out_right = std::sqrt(error) <= 6e-3 * std::max(std::sqrt(size), 0.3) && !std::isnan(error);
      if (lse_right && out_right) continue;
      if (++reported > 4) continue;
      ADD_FAILURE() << w.name << ": row " << row << " (token " << row / static_cast<size_t>(w.heads) << ", head "
                    << row % static_cast<size_t>(w.heads) << "): relative error " << std::sqrt(error / std::max(size, 1e-30)) << ", lse "
                    << got.lse[row] << " want " << want.lse[row] << "; " << wrong << " columns off, the first " << worst << ": "
                    << got.out[row * d_v + worst] << " want " << want.out[row * d_v + worst] << "; columns 0..3: " << got.out[row * d_v]
                    << " " << got.out[row * d_v + 1] << " " << got.out[row * d_v + 2] << " " << got.out[row * d_v + 3] << " want "
                    << want.out[row * d_v] << " " << want.out[row * d_v + 1] << " " << want.out[row * d_v + 2] << " "
                    << want.out[row * d_v + 3];
    }
    if (reported > 4) ADD_FAILURE() << w.name << ": " << reported << " of " << want.lse.size() << " rows are wrong";
  }

 private:
  std::vector<void*> blocks_;
  std::mt19937 engine_{3};
};

TEST_P(NarrowKernel, AgreesWithFloat32) {
  const Result<DeviceCaps> caps = device_caps(0);
  if (!caps.ok() || caps->major != 9) GTEST_SKIP() << "no device of compute capability 9.0";
  const std::string kernel = GetParam();
  Widths widths;
  if (kernel.find("e4m3") != std::string::npos) widths.format = Format::kE4m3;
  if (kernel.find("d128") != std::string::npos) widths = {Format::kBf16, 128, 128, false};
  for (const Work& w : works()) {
    std::vector<Source> sources;
    Problem p = make(w, widths, &sources);
    p.sources = sources;
    std::string fault;
    const Outputs want = run(p, w, widths, "attention_cuda_simt", &fault);
    ASSERT_EQ(fault, "") << w.name;
    const Outputs got = run(p, w, widths, kernel, &fault);
    ASSERT_EQ(fault, "") << w.name;
    compare(w, widths, got, want);
    const Outputs again = run(p, w, widths, kernel, &fault);
    EXPECT_TRUE(std::memcmp(again.out.data(), got.out.data(), got.out.size() * 4) == 0) << w.name << ": other bits when run again";
  }
}

std::vector<std::string> narrow_kernels() {
  std::vector<std::string> names;
  int32_t count = 0;
  const Kernel* const* list = kernel_list(&count);
  for (int32_t i = 0; i < count; ++i) {
    if (std::string(list[i]->name).rfind("decode_narrow", 0) == 0) names.emplace_back(list[i]->name);
  }
  return names;
}
INSTANTIATE_TEST_SUITE_P(All, NarrowKernel, ::testing::ValuesIn(narrow_kernels()), [](const auto& info) { return info.param; });
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(NarrowKernel);

}  // namespace
}  // namespace headwater::cuda
