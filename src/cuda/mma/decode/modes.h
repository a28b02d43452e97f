// How each source of a problem goes through the stages of a decode kernel: from record layouts and alignments alone.
#pragma once

#include <string>

#include "src/cuda/kernel.h"
#include "src/cuda/mma/decode/layout.h"
#include "src/formats/record.h"

namespace headwater::cuda::decode {

struct ModeInput {
  formats::RecordLayout k;
  formats::RecordLayout v;  // not read when shared
  bool shared = false;
  int32_t alignment = 16;
};

struct Plan {
  Modes modes;
  int32_t stage_bytes = 0;
};

// compute: kBf16 or kF16.
[[nodiscard]] Plan make_modes(const ModeInput* inputs, int32_t count, Type compute, int32_t tile, int32_t d_qk, int32_t d_v);
[[nodiscard]] Plan make_modes(const Bounds& bounds, Type compute, int32_t tile);
[[nodiscard]] Plan make_modes(const ResolvedProblem& problem, Type compute, int32_t tile);

// Largest d_qk, d_v, and whether row blocks of more than 16 rows are wanted.
struct Limits {
  const char* name;
  Type compute;
  int32_t rows;
  int32_t d_qk;
  int32_t d_v;
};
// Empty, or why formats, types, widths or alignments do not suit.
[[nodiscard]] std::string refuse_problem(const Choice& choice, const Limits& limits);

}  // namespace headwater::cuda::decode
