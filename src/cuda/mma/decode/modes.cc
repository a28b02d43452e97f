#include "src/cuda/mma/decode/modes.h"

#include <algorithm>
#include <array>

namespace headwater::cuda::decode {
namespace {

int32_t up(int32_t value, int32_t multiple) { return (value + multiple - 1) / multiple * multiple; }

bool is_direct(const formats::RecordLayout& layout, Type compute) {
  return layout.num_segments == 1 && layout.segments[0].element == compute && layout.segments[0].place == formats::ScalePlace::kNone;
}

// Values that 16 bits do not hold: K's would miss the score's tolerance, V's the output's, where P and out are rounded too: f16 in bf16,
// int8 times f16, e4m3 times any float.
bool needs_two_planes(const formats::RecordLayout& layout) {
  for (int32_t i = 0; i < layout.num_segments; ++i) {
    const formats::Segment& s = layout.segments[i];
    if (s.element == Type::kF16) return true;
    if (s.place == formats::ScalePlace::kInRow && (s.scale == Type::kF16 || s.scale == Type::kF32)) return true;
  }
  return false;
}

TensorMode make_mode(const formats::RecordLayout& layout, Type compute, int32_t alignment) {
  TensorMode m;
  m.direct = is_direct(layout, compute) ? 1 : 0;
  m.row_bytes = layout.row_bytes;
  m.pitch = m.direct != 0 ? up(layout.row_bytes, 128) : up(layout.row_bytes, 16);
  m.granule = std::min(16, alignment);
  const formats::Segment& s = layout.segments[0];
  if (s.place == formats::ScalePlace::kApart || s.place == formats::ScalePlace::kPageTail) {
    m.scale_blocks = (s.column_end - s.column_begin + s.block - 1) / s.block;
    m.row_scale = s.scale == Type::kF32 ? 1 : 0;
    m.scale_pitch = m.row_scale != 0 ? 4 : up(m.scale_blocks, 4);
  }
  return m;
}

// Stands at `*at` in the stage, its scales behind it.
void place_tensor(TensorMode* m, int32_t tile, int32_t* at) {
  m->offset = *at;
  *at = up(*at + tile * m->pitch, 128);
  m->scale_offset = *at;
  *at = up(*at + tile * m->scale_pitch, 128);
}

bool is_exact_in_f16(Format format) { return format == Format::kF16 || format == Format::kE4m3 || format == Format::kE5m2; }

bool has_f32(const SourceBounds& s) { return s.k_format == Format::kF32 || (!s.shared && s.v_format == Format::kF32); }

// Column segments must not cut a group of eight.
bool cuts_eights(Format format, int32_t width) {
  return formats::resolve(format, width).segments[0].column_end % 8 != 0 && formats::resolve(format, width).num_segments > 1;
}

int64_t tensor_alignment(const ResolvedTensor& t, bool paged) {
  uint64_t bits = reinterpret_cast<uintptr_t>(t.data) | static_cast<uint64_t>(t.row_stride) | static_cast<uint64_t>(t.head_stride) | 16U;
  if (paged) bits |= static_cast<uint64_t>(t.page_stride);
  return static_cast<int64_t>(bits & (~bits + 1));
}

}  // namespace

Plan make_modes(const ModeInput* inputs, int32_t count, Type compute, int32_t tile, int32_t d_qk, int32_t d_v) {
  Plan plan;
  plan.modes.k_pitch = up(2 * d_qk, 128);
  plan.modes.v_pitch = up(2 * d_v, 128);
  plan.modes.operand_k_plane = tile * plan.modes.k_pitch;
  plan.modes.operand_v_plane = tile * plan.modes.v_pitch;
  plan.modes.fold_v_scale = compute == Type::kBf16 ? 1 : 0;
  int32_t k_planes = 0;
  int32_t v_planes = 0;
  for (int32_t i = 0; i < count; ++i) {
    const ModeInput& in = inputs[i];
    SourceMode& to = plan.modes.sources[i];
    int32_t bytes = 0;
    to.k = make_mode(in.k, compute, in.alignment);
    if (compute == Type::kBf16 && to.k.direct == 0 && needs_two_planes(in.k)) to.k.planes = 2;
    place_tensor(&to.k, tile, &bytes);
    if (to.k.direct == 0) k_planes = std::max(k_planes, to.k.planes);
    if (!in.shared) {
      to.v = make_mode(in.v, compute, in.alignment);
      place_tensor(&to.v, tile, &bytes);
      if (compute == Type::kBf16 && to.v.direct == 0 && needs_two_planes(in.v)) to.v.planes = 2;
      if (to.v.direct == 0) v_planes = std::max(v_planes, to.v.planes);
    }
    plan.stage_bytes = std::max(plan.stage_bytes, bytes);
  }
  plan.modes.operand_v = k_planes * plan.modes.operand_k_plane;
  plan.modes.operand_bytes = plan.modes.operand_v + v_planes * plan.modes.operand_v_plane;
  return plan;
}

Plan make_modes(const Bounds& bounds, Type compute, int32_t tile) {
  std::array<ModeInput, kMaxSources> inputs;
  int32_t count = 0;
  for (const SourceBounds& s : bounds.sources) {
    ModeInput& in = inputs[static_cast<size_t>(count++)];
    in.k = formats::resolve(s.k_format, bounds.d_qk);
    if (!s.shared) in.v = formats::resolve(s.v_format, bounds.d_v);
    in.shared = s.shared;
    in.alignment = s.alignment;
  }
  return make_modes(inputs.data(), count, compute, tile, bounds.d_qk, bounds.d_v);
}

Plan make_modes(const ResolvedProblem& p, Type compute, int32_t tile) {
  std::array<ModeInput, kMaxSources> inputs;
  for (int32_t i = 0; i < p.num_sources; ++i) {
    const ResolvedSource& s = p.sources[i];
    ModeInput& in = inputs[static_cast<size_t>(i)];
    const bool paged = s.addressing != AddressingKind::kRagged;
    in.k = s.k.layout;
    in.v = s.v.layout;
    in.shared = s.shared;
    int64_t alignment = tensor_alignment(s.k, paged);
    if (!s.shared) alignment = std::min(alignment, tensor_alignment(s.v, paged));
    in.alignment = static_cast<int32_t>(alignment);
  }
  return make_modes(inputs.data(), p.num_sources, compute, tile, p.d_qk, p.d_v);
}

std::string refuse_problem(const Choice& choice, const Limits& limits) {
  const Bounds& b = choice.bounds;
  if (b.d_qk > limits.d_qk) return "d_qk = " + std::to_string(b.d_qk) + ": at most " + std::to_string(limits.d_qk);
  if (b.d_v > limits.d_v) return "d_v = " + std::to_string(b.d_v) + ": at most " + std::to_string(limits.d_v);
  const bool f16 = limits.compute == Type::kF16;
  if (b.q_type == Type::kF32) return "f32 queries: float32 kernel";
  if (!f16 && b.q_type == Type::kF16) return "f16 queries: not exact in bf16";
  bool scaled = false;
  for (const SourceBounds& s : b.sources) {
    if (has_f32(s)) return "f32 cache: float32 kernel";
    const Format v = s.shared ? s.k_format : s.v_format;
    if (f16 && !(is_exact_in_f16(s.k_format) && is_exact_in_f16(v))) {
      return std::string(format_info(is_exact_in_f16(s.k_format) ? v : s.k_format).name) + ": not exact in f16";
    }
    if (cuts_eights(s.k_format, b.d_qk) || (!s.shared && cuts_eights(s.v_format, b.d_v))) {
      return "columns of one kind: their count must be a multiple of 8";
    }
    if (s.alignment < 4) return "kv alignment = " + std::to_string(s.alignment) + ": copies need 4 bytes";
    scaled = scaled || format_info(v).takes_scale;
  }
  if (f16 && scaled && b.sources.size() > 1) return "several sources with v_scale: folded into P, which needs bf16's range";
  return {};
}

}  // namespace headwater::cuda::decode
