// Which kernel runs, and why the others do not: needs no device.
#include "src/cuda/select.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "src/cuda/mma/decode/modes.h"

namespace headwater::cuda {
namespace {

constexpr DeviceCaps kH200{9, 0, 132, 232448, 233472, 65536};
constexpr DeviceCaps kA100{8, 0, 108, 166912, 167936, 65536};
constexpr DeviceCaps kA10{8, 6, 72, 101376, 102400, 65536};

Bounds latent_bounds(Format format, Type q, int32_t heads) {
  Bounds b;
  b.device = {DeviceKind::kCuda, 0};
  b.max_requests = b.max_total_q = 4;
  b.max_q_len = 1;
  b.q_type = q;
  b.heads = heads;
  b.d_qk = 576;
  b.d_v = 512;
  SourceBounds s;
  s.k_format = s.v_format = format;
  s.shared = true;
  s.rule = RuleKind::kCausal;
  s.max_len = 8192;
  b.sources = {s};
  return b;
}

std::string chosen(const DeviceCaps& caps, const Bounds& bounds, bool invariant = false) {
  PlanOptions options;
  options.batch_invariant = invariant;
  for (const KernelVerdict& v : verdicts(caps, bounds, options)) {
    if (v.accepted) return v.kernel;
    EXPECT_FALSE(v.reason.empty()) << v.kernel;
  }
  return "";
}

TEST(CudaSelect, LatentDecodePicksOperandTypeByFormat) {
  EXPECT_EQ(chosen(kA100, latent_bounds(Format::kBf16, Type::kBf16, 16)), "decode_mma_bf16_d576");
  EXPECT_EQ(chosen(kA100, latent_bounds(Format::kE4m3, Type::kBf16, 16)), "decode_mma_f16_d576");
  EXPECT_EQ(chosen(kH200, latent_bounds(Format::kF16, Type::kF16, 16)), "decode_mma_f16_d576_warps16");
  EXPECT_EQ(chosen(kH200, latent_bounds(Format::kMxfp4, Type::kBf16, 16)), "decode_mma_bf16_d576_warps16");
  EXPECT_EQ(chosen(kH200, latent_bounds(Format::kFp8Ds656, Type::kE4m3, 16)), "decode_mma_bf16_d576");
}

#if defined(HEADWATER_CUDA_HOPPER)
TEST(CudaSelect, HopperHasAKernelOfItsOwnForFewRows) {
  EXPECT_EQ(chosen(kH200, latent_bounds(Format::kBf16, Type::kBf16, 16)), "decode_narrow_bf16_d576");
  EXPECT_EQ(chosen(kH200, latent_bounds(Format::kE4m3, Type::kBf16, 1)), "decode_narrow_e4m3_d576");
  Bounds bounds = latent_bounds(Format::kBf16, Type::kBf16, 4);
  bounds.max_q_len = 4;
  EXPECT_EQ(chosen(kH200, bounds), "decode_narrow_bf16_d576");
  EXPECT_EQ(chosen(kH200, bounds, true), "decode_mma_bf16_d576_warps16");
  // What it refuses, portable kernels take.
  bounds.softcap = true;
  EXPECT_EQ(chosen(kH200, bounds), "decode_mma_bf16_d576_warps16");
  bounds = latent_bounds(Format::kBf16, Type::kBf16, 16);
  bounds.sources[0].alignment = 8;
  EXPECT_EQ(chosen(kH200, bounds), "decode_mma_bf16_d576_warps16");
  bounds = latent_bounds(Format::kBf16, Type::kBf16, 16);
  bounds.sources[0].rule = RuleKind::kGathered;
  EXPECT_EQ(chosen(kH200, bounds), "decode_mma_bf16_d576_warps16");
  bounds.sources.push_back(bounds.sources[0]);
  EXPECT_EQ(chosen(kH200, bounds), "decode_mma_bf16_d576_warps16");
}
#endif

TEST(CudaSelect, ManyRowsTakeTheWideKernelWhereItFits) {
  EXPECT_EQ(chosen(kH200, latent_bounds(Format::kBf16, Type::kBf16, 64)), "decode_mma_bf16_d512_rows64");
  EXPECT_EQ(chosen(kA10, latent_bounds(Format::kBf16, Type::kBf16, 64)), "decode_mma_bf16_d576");
  Bounds tokens = latent_bounds(Format::kBf16, Type::kBf16, 16);
  tokens.max_q_len = 4;
  EXPECT_EQ(chosen(kH200, tokens), "decode_mma_bf16_d512_rows64");
}

// Bounds that are looser than the problem must not change the kernel: another one has other bits.
TEST(CudaSelect, BatchInvariantChoiceIgnoresLooserBounds) {
  for (const Format format : {Format::kBf16, Format::kE4m3}) {
    for (const bool latent : {true, false}) {
      Bounds tight = latent_bounds(format, Type::kBf16, 8);
      if (!latent) {
        tight.d_qk = tight.d_v = 128;
        tight.sources[0].shared = false;
        tight.sources[0].heads = 2;
      }
      const std::string kernel = chosen(kH200, tight, true);
      std::vector<Bounds> looser(5, tight);
      looser[0].max_requests = looser[0].max_total_q = 900;
      looser[1].max_q_len = looser[1].max_total_q = 512;
      looser[2].softcap = true;
      looser[3].sources[0].alignment = 4;
      looser[3].q_alignment = 2;
      looser[4].sources[0].max_len = 1 << 20;
      for (size_t i = 0; i < looser.size(); ++i)
        EXPECT_EQ(chosen(kH200, looser[i], true), kernel) << format_info(format).name << ", bounds " << i;
    }
  }
}

TEST(CudaSelect, CheckedModeRunsKernelsThatMaskWhatTheySkip) {
  PlanOptions options;
  options.checked = true;
  for (const KernelVerdict& v : verdicts(kH200, latent_bounds(Format::kBf16, Type::kBf16, 16), options)) {
    if (v.kernel.rfind("decode_narrow", 0) == 0) {
      EXPECT_NE(v.reason.find("checked"), std::string::npos) << v.kernel;
    }
  }
}

// Another request's q_len must not change the kernel of this one.
TEST(CudaSelect, BatchInvariantChoiceIgnoresQLen) {
  Bounds bounds = latent_bounds(Format::kBf16, Type::kBf16, 16);
  const std::string alone = chosen(kH200, bounds, true);
  bounds.max_q_len = 512;
  EXPECT_EQ(chosen(kH200, bounds, true), alone);
}

TEST(CudaSelect, Float32AndOddViewsRunTheFloat32Kernel) {
  EXPECT_EQ(chosen(kH200, latent_bounds(Format::kF32, Type::kBf16, 16)), "attention_cuda_simt");
  EXPECT_EQ(chosen(kH200, latent_bounds(Format::kBf16, Type::kF32, 16)), "attention_cuda_simt");
  Bounds odd = latent_bounds(Format::kBf16, Type::kBf16, 16);
  odd.sources[0].alignment = 2;
  EXPECT_EQ(chosen(kH200, odd), "attention_cuda_simt");
}

TEST(CudaSelect, EveryDeviceSinceAmpereHasAKernelForEveryFormat) {
  for (const DeviceCaps& caps : {kH200, kA100, kA10}) {
    for (const FormatInfo& info : all_formats()) {
      Bounds b = latent_bounds(info.format, Type::kBf16, 16);
      if (info.fixed_width != 0) {
        b.d_qk = info.fixed_width;
        b.d_v = 512;
      }
      EXPECT_NE(chosen(caps, b), "") << info.name;
    }
  }
  DeviceCaps turing = kA100;
  turing.major = 7;
  EXPECT_EQ(chosen(turing, latent_bounds(Format::kBf16, Type::kBf16, 16)), "");
}

TEST(CudaSelect, BlocksFitTheDevice) {
  for (const DeviceCaps& caps : {kH200, kA100, kA10}) {
    for (const Format format : {Format::kBf16, Format::kE4m3, Format::kMxfp4, Format::kFp8Ds656}) {
      for (const int32_t heads : {16, 64, 128}) {
        const Bounds bounds = latent_bounds(format, Type::kBf16, heads);
        const Kernel* kernel = kernel_by_name(chosen(caps, bounds));
        ASSERT_NE(kernel, nullptr);
        const LaunchShape launch = kernel->shape({caps, bounds, false, heads});
        EXPECT_LE(launch.smem_bytes + 4096, caps.smem_per_block + 4096);
        EXPECT_LE((launch.smem_bytes + 1024) * launch.blocks_per_sm, caps.smem_per_sm);
      }
    }
  }
}

// Raw bytes, scales and operand tiles stand apart and aligned.
TEST(CudaDecodeModes, StageHoldsEveryTensor) {
  for (const FormatInfo& info : all_formats()) {
    if (info.format == Format::kF32) continue;
    const Bounds b = [&] {
      Bounds bounds = latent_bounds(info.format, Type::kBf16, 16);
      if (info.fixed_width != 0) bounds.d_qk = info.fixed_width;
      return bounds;
    }();
    const decode::Plan plan = decode::make_modes(b, Type::kBf16, 32);
    const decode::TensorMode& k = plan.modes.sources[0].k;
    EXPECT_GE(k.pitch, k.row_bytes) << info.name;
    EXPECT_EQ(k.pitch % 16, 0) << info.name;
    EXPECT_GE(k.scale_offset, k.offset + 32 * k.pitch) << info.name;
    EXPECT_GE(plan.stage_bytes, k.scale_offset + 32 * k.scale_pitch) << info.name;
    EXPECT_EQ(k.direct != 0, info.format == Format::kBf16) << info.name;
    EXPECT_EQ(plan.modes.operand_bytes % 128, 0) << info.name;
  }
}

}  // namespace
}  // namespace headwater::cuda
