// The host side of one instance.
#pragma once

#include <algorithm>
#include <string>

#include "src/cuda/common/exact_item.cuh"
#include "src/cuda/hopper/decode_narrow/kernel.cuh"
#include "src/cuda/kernel.h"

namespace headwater::cuda::narrow {

template <class C, class T>
struct Launcher {
  static constexpr Format kFormat = C::kOneByte ? Format::kE4m3 : sizeof(T) == 2 && kWeightShift<T> != 0.0F ? Format::kF16 : Format::kBf16;
  static constexpr int32_t kStatic = (static_cast<int32_t>(sizeof(Shared<C>)) + 127) / 128 * 128;
  static constexpr int32_t kDynamic = std::max(C::kSharedBytes, static_cast<int32_t>(sizeof(ExactStorage)));
  static_assert(kStatic + kDynamic <= 232448);

  static std::string refuse(const Choice& choice) {
    const Bounds& b = choice.bounds;
    if (choice.caps.major != 9) return "compute capability 9.0 only";
    if (choice.batch_invariant) return "batch_invariant: bounds that allow a softcap or promise less alignment would choose another kernel";
    if (choice.checked) return "checked mode: skipped entries are masked by the portable kernels";
    if (b.sources.size() != 1) return "sources = " + std::to_string(b.sources.size()) + ": one";
    const SourceBounds& s = b.sources[0];
    const std::string format(format_info(kFormat).name);
    if (s.k_format != kFormat || (!s.shared && s.v_format != kFormat)) return "formats other than " + format;
    if (b.d_qk != C::kDqk || b.d_v != C::kDv || s.shared != C::kShared) {
      return "d_qk, d_v: " + std::to_string(C::kDqk) + ", " + std::to_string(C::kDv) + (C::kShared ? ", K = V" : ", K and V apart") +
             " only";
    }
    if (s.rule == RuleKind::kGathered) return "gathered lists have holes";
    if (b.softcap) return "softcap: portable kernels have it";
    if (b.q_type == Type::kF32) return "f32 queries: float32 kernel";
    if (b.q_type == Type::kF16 && kFormat == Format::kBf16) return "f16 queries: not exact in bf16";
    if (s.alignment < 16) return "kv alignment = " + std::to_string(s.alignment) + ": copies need 16 bytes";
    if (b.max_q_len * int64_t{choice.head_block} > kRows) return "more than 16 rows: a wide kernel reads the cache less often";
    if (kStatic + kDynamic > choice.caps.smem_per_block)
      return "shared memory: a block needs " + std::to_string(kStatic + kDynamic) + " bytes";
    return {};
  }

  static LaunchShape shape(const Choice&) {
    LaunchShape launch;
    launch.stages = C::kStages;
    launch.stage_bytes = C::kStageBytes;
    launch.smem_bytes = kDynamic;
    launch.blocks_per_sm = 1;
    launch.rows = kRows;
    return launch;
  }

  static plan::KernelTraits traits(const Choice&) {
    plan::KernelTraits t;
    t.tile_entries = C::kTile;
    t.max_rows = kRows;
    t.bytes_per_us = 33e3;
    t.flops_per_us = 2.2e6;
    t.fragment_us = 1.0;
    t.merge_bytes_per_us = 200e3;
    t.max_splits = 64;
    return t;
  }

  static cudaError_t warm() {
    return cudaFuncSetAttribute(decode_narrow_kernel<C, T>, cudaFuncAttributeMaxDynamicSharedMemorySize, kDynamic);
  }

  static cudaError_t launch(const KernelArgs& args, cudaStream_t stream) {
    NarrowArgs full;
    full.base = args;
    full.grouped = is_grouped(args.problem.sources[0]) ? 1 : 0;
    full.q_vectors = reads_vectors(args.problem) ? 1 : 0;
    const dim3 grid(static_cast<uint32_t>(args.shape.workers), static_cast<uint32_t>(args.launch.row_blocks));
    return launch_kernel(decode_narrow_kernel<C, T>, grid, C::kThreads, static_cast<size_t>(kDynamic), stream, false, full);
  }

  static constexpr Kernel kernel(const char* name, const char* accepts) {
    return {name, "src/cuda/hopper/decode_narrow/kernel.cuh", accepts, refuse, shape, traits, launch, warm};
  }

 private:
  // Every group of entries is one run of bytes.
  static bool is_grouped(const ResolvedSource& s) {
    if (s.addressing != AddressingKind::kRagged && s.page_size % C::Keys::kGroup != 0) return false;
    return s.k.row_stride == C::Keys::kRowBytes && (C::kShared || s.v.row_stride == C::Values::kRowBytes);
  }

  static bool reads_vectors(const ResolvedProblem& p) {
    if (p.q_type != Type::kBf16 && p.q_type != Type::kF16) return false;
    auto bits = reinterpret_cast<uintptr_t>(p.q) | static_cast<uintptr_t>(p.q_row_stride) | static_cast<uintptr_t>(p.q_head_stride);
    if (p.q_tail_width > 0) {
      bits |= reinterpret_cast<uintptr_t>(p.q_tail) | static_cast<uintptr_t>(p.q_tail_row_stride) |
              static_cast<uintptr_t>(p.q_tail_head_stride);
    }
    return bits % 16 == 0 && p.q_width % 8 == 0;
  }
};

}  // namespace headwater::cuda::narrow
