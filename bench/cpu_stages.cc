// The stages of the CPU panel form, one by one, on one core with all data in L2: what each costs a tile, in core cycles, beside the cycles
// that its multiply-adds need at two vectors a cycle. Build with -DHEADWATER_BUILD_BENCH=ON; run build/bench/cpu_stages.
//
// Cycles are counted by the clock of this core: a chain of dependent integer additions takes one cycle each.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "headwater/headwater.h"
#include "src/cpu/tile_attention-inl.h"

namespace headwater::cpu::HEADWATER_CPU_ISA {
namespace {

using Clock = std::chrono::steady_clock;

double ns_of(const std::function<void()>& work) {
  const auto begin = Clock::now();
  work();
  return std::chrono::duration<double, std::nano>(Clock::now() - begin).count();
}

// A million dependent additions.
void count_cycles() {
  uint64_t x = 1;
  for (int i = 0; i < 100000; ++i) {
    for (int k = 0; k < 10; ++k) asm volatile("add $1, %0" : "+r"(x));
  }
}

struct Aligned {
  explicit Aligned(size_t floats) : data(static_cast<float*>(std::aligned_alloc(64, (floats * 4 + 63) / 64 * 64))), size(floats) {
    std::mt19937 engine(1);
    for (size_t i = 0; i < floats; ++i) data[i] = static_cast<float>(engine() / 2147483648.0 - 1.0);
  }
  ~Aligned() { std::free(data); }
  Aligned(const Aligned&) = delete;
  Aligned& operator=(const Aligned&) = delete;
  float* data;
  size_t size;
};

// One stage: `flops` multiply-adds x 2 of one call.
struct Stage {
  std::string name;
  double flops = 0.0;
  std::function<void()> work;
  double ns = 1e30;  // of one call
};

struct Tensors {
  Tensors(int d_qk, int d_v, int tile)
      : row_floats(scratch_row_floats(d_qk)),
        k(static_cast<size_t>(tile) * static_cast<size_t>(row_floats)),
        q(static_cast<size_t>(d_qk) * 16),
        o(static_cast<size_t>(d_v) * 16),
        s(static_cast<size_t>(tile) * 16),
        m(16),
        l(16) {}
  int row_floats;
  Aligned k, q, o, s, m, l;
};

// Records of a format as the executor sees them.
struct EncodedRecords {
  EncodedRecords(Format format, int width, int tile) : layout(formats::resolve(format, width)) {
    const auto row_bytes = static_cast<size_t>(record_row_bytes(format, width));
    const auto scale_bytes = static_cast<size_t>(layout.tail_bytes > 0 ? layout.tail_bytes : record_scale_bytes(format, width));
    bytes.resize(row_bytes * static_cast<size_t>(tile) + 64);
    scale.resize(std::max<size_t>(1, scale_bytes) * static_cast<size_t>(tile) + 64);
    std::vector<float> values(static_cast<size_t>(width));
    std::mt19937 engine(2);
    for (int i = 0; i < tile; ++i) {
      for (float& v : values) v = static_cast<float>(engine() / 2147483648.0 - 1.0);
      row.push_back(bytes.data() + static_cast<size_t>(i) * row_bytes);
      scales.push_back(scale.data() + static_cast<size_t>(i) * scale_bytes);
      const float constant = format_info(format).takes_scale ? 0.0625F : 1.0F;
      (void)encode_record(format, width, values.data(), bytes.data() + static_cast<size_t>(i) * row_bytes,
                          scale.data() + static_cast<size_t>(i) * scale_bytes, constant);
    }
    records.row = row.data();
    records.scales = scales.data();
    records.layout = &layout;
    records.scale_block_stride = 1;
    records.global = format_info(format).takes_scale ? 0.0625F : 1.0F;
  }
  EncodedRecords(const EncodedRecords&) = delete;
  formats::RecordLayout layout;
  std::vector<std::byte> bytes, scale;
  std::vector<const std::byte*> row, scales;
  TileRecords records;
};

void run(int d_qk, int d_v, int tile) {
  Tensors t(d_qk, d_v, tile);
  Aligned b(static_cast<size_t>(std::max(d_qk, tile)) * 16);
  TilePrefetcher none(nullptr, 1);
  const double pairs = 2.0 * 16.0 * tile;
  std::vector<Stage> stages;
  stages.push_back(
      {"scores (6 x 16)", pairs * d_qk, [&] { panel_scores<16>(t.k.data, t.row_floats, tile, t.q.data, d_qk, t.s.data, &none); }});
  stages.push_back(
      {"values (6 x 16)", pairs * d_v, [&] { product<16, true>(d_v, t.k.data, t.row_floats, b.data, tile, true, t.o.data, &none); }});
  LaneRanges<16> ranges;
  ranges.end = tile;
  alignas(64) float alpha[16];
  stages.push_back({"softmax", 0.0, [&] {
                      std::copy_n(b.data, tile * 16, t.s.data);
                      (void)softmax<16>(0.0F, ranges, tile, t.s.data, t.m.data, t.l.data, alpha);
                    }});
  std::vector<std::unique_ptr<EncodedRecords>> records;
  for (const char* name : {"f32", "bf16", "f16", "e4m3", "fp8_ds_656", "fp8_ds_584", "mxfp4", "nvfp4"}) {
    const auto format = format_by_name(name);
    if (!format || (format_info(*format).fixed_width != 0 && format_info(*format).fixed_width != d_qk)) continue;
    records.push_back(std::make_unique<EncodedRecords>(*format, d_qk, tile));
    const TileRecords* of = &records.back()->records;
    stages.push_back(
        {std::string("conversion of ") + name, 0.0, [&t, of, tile] { convert_records(*of, 0, tile, t.k.data, t.row_floats); }});
    const formats::Segment& segment = of->layout->segments[0];
    if (segment.element != Type::kBf16 && segment.element != Type::kF16) continue;
    stages.push_back({std::string("scores from ") + name, pairs * d_qk,
                      [&t, &none, of, tile] { (void)converting_scores(*of, tile, t.k.data, t.row_floats, t.q.data, t.s.data, &none); }});
  }
  double clock_ns = 1e30;  // of a cycle
  for (int round = 0; round < 400; ++round) {
    clock_ns = std::min(clock_ns, ns_of(count_cycles) * 1e-6);
    for (Stage& stage : stages) {
      stage.work();
      stage.ns = std::min(stage.ns, ns_of([&] {
                                      for (int i = 0; i < 4; ++i) stage.work();
                                    }) / 4);
    }
  }
  const double floor = pairs * (d_qk + d_v) / (4.0 * kLanes);
  std::printf("d_qk %d, d_v %d, tile of %d entries, 16 rows, %d lanes; %.2f GHz; the products' multiply-adds alone: %.0f cycles\n", d_qk,
              d_v, tile, kLanes, 1.0 / clock_ns, floor);
  std::printf("%-26s %9s %9s %9s\n", "stage", "cycles", "over FMA", "% of tile");
  for (const Stage& stage : stages) {
    const double cycles = stage.ns / clock_ns;
    const double least = stage.flops / (4.0 * kLanes);  // two vectors a cycle, two operations a lane
    std::printf("%-26s %9.0f %9s %9.1f\n", stage.name.c_str(), cycles,
                least > 0.0 ? std::to_string(cycles / least).substr(0, 5).c_str() : "", 100.0 * cycles / floor);
  }
}

}  // namespace

void run_all() {
  (void)&run_items;  // stands in the kernel's header, not used here
  for (const int tile : {48, 96}) run(576, 512, tile);
  run(512, 512, 48);
  run(128, 128, 96);
  run(64, 64, 96);
}

}  // namespace headwater::cpu::HEADWATER_CPU_ISA

int main() { headwater::cpu::HEADWATER_CPU_ISA::run_all(); }
