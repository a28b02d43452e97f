// The host side of one instance.
#pragma once

#include "src/cuda/common/exact_item.cuh"
#include "src/cuda/mma/decode/kernel.cuh"
#include "src/cuda/mma/decode/modes.h"

namespace headwater::cuda::decode {

template <class P, class T>
struct Launcher {
  static constexpr Type kCompute = sizeof(T) == 2 && kWeightShift<T> != 0.0F ? Type::kF16 : Type::kBf16;
  static constexpr Limits kLimits{"", kCompute, P::kRows, 16 * P::kDepthSteps* P::kDepthWarps,
                                  16 * P::kPairs* kWarps<P> > 576 ? 576 : 16 * P::kPairs* kWarps<P>};

  static constexpr int32_t kStatic = (static_cast<int32_t>(sizeof(Shared<P>)) + 127) / 128 * 128;  // static shared memory of the kernel

  static int32_t smem_limit(const Choice& choice) {
    constexpr int32_t kReserved = 1024;  // of a resident block
    const int32_t share = choice.caps.smem_per_sm / P::kBlocksPerSm - kReserved;
    return std::min(share, choice.caps.smem_per_block) - kStatic;
  }

  static std::string refuse(const Choice& choice) {
    const Bounds& b = choice.bounds;
    if constexpr (P::kRows > 16) {
      bool gathered = false;
      for (const SourceBounds& s : b.sources) gathered = gathered || s.rule == RuleKind::kGathered;
      // batch_invariant: the choice must not depend on other requests, which max_q_len does.
      const int64_t tokens = gathered || choice.batch_invariant ? 1 : b.max_q_len;
      if (tokens * choice.head_block <= 16) return "row blocks of at most 16 rows: a narrow kernel wastes less";
    }
    if (std::string reason = refuse_problem(choice, kLimits); !reason.empty()) return reason;
    const Plan plan = make_modes(b, kCompute, P::kTile);
    const int32_t needed = make_layout<P>(2, plan.stage_bytes, plan.modes, b.d_qk).total;
    if (needed > smem_limit(choice)) return "shared memory: two tiles in flight need " + std::to_string(needed) + " bytes a block";
    return {};
  }

  static LaunchShape shape(const Choice& choice) {
    const Plan plan = make_modes(choice.bounds, kCompute, P::kTile);
    LaunchShape launch;
    launch.stage_bytes = plan.stage_bytes;
    launch.stages = 2;
    while (launch.stages < kMaxStages &&
           make_layout<P>(launch.stages + 1, plan.stage_bytes, plan.modes, choice.bounds.d_qk).total <= smem_limit(choice)) {
      ++launch.stages;
    }
    launch.smem_bytes = std::max(make_layout<P>(launch.stages, plan.stage_bytes, plan.modes, choice.bounds.d_qk).total,
                                 static_cast<int32_t>(sizeof(ExactStorage)));
    launch.blocks_per_sm = P::kBlocksPerSm;
    launch.rows = P::kRows;
    return launch;
  }

  static plan::KernelTraits traits(const Choice&) {
    plan::KernelTraits t;
    t.tile_entries = P::kTile;
    t.max_rows = P::kRows;
    t.bytes_per_us = 33e3 / P::kBlocksPerSm;
    t.flops_per_us = 2.2e6 / P::kBlocksPerSm;
    t.fragment_us = 1.5;
    t.merge_bytes_per_us = 200e3;
    t.max_splits = 64;
    return t;
  }

  static cudaError_t warm() { return allow_all_shared_memory(decode_mma_kernel<P, T>, kStatic); }

  static cudaError_t launch(const KernelArgs& args, cudaStream_t stream) {
    DecodeArgs full;
    full.base = args;
    full.modes = make_modes(args.problem, kCompute, P::kTile).modes;
    full.modes.layout = make_layout<P>(args.launch.stages, args.launch.stage_bytes, full.modes, args.problem.d_qk);
    const dim3 grid(static_cast<uint32_t>(args.shape.workers), static_cast<uint32_t>(args.launch.row_blocks));
    return launch_kernel(decode_mma_kernel<P, T>, grid, P::kThreads, static_cast<size_t>(args.launch.smem_bytes), stream, false, full);
  }

  static constexpr Kernel kernel(const char* name, const char* accepts) {
    return {name, "src/cuda/mma/decode/kernel.cuh", accepts, refuse, shape, traits, launch, warm};
  }
};

}  // namespace headwater::cuda::decode
