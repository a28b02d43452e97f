// Writing a row of out, or of a partial, two neighbouring columns at a time.
#pragma once

#include "src/cuda/common/finalize.cuh"
#include "src/cuda/mma/common/rows.cuh"

namespace headwater::cuda::mma {

struct PairStore {
  std::byte* row = nullptr;
  int32_t d_v = 0;
  bool wide = false;    // float32 elements
  bool bf16 = false;    // of 16-bit ones
  bool paired = false;  // every even column is aligned to a pair

  PairStore() = default;
  __device__ PairStore(std::byte* at, Type type, int32_t columns)
      : row(at),
        d_v(columns),
        wide(type == Type::kF32),
        bf16(type == Type::kBf16),
        paired((reinterpret_cast<uintptr_t>(at) & (type == Type::kF32 ? 7U : 3U)) == 0) {}

  __device__ void put(int32_t c, float x, float y) const {
    const bool both = c + 1 < d_v;
    if (wide) {
      float* at = reinterpret_cast<float*>(row) + c;
      if (paired && both) {
        *reinterpret_cast<float2*>(at) = make_float2(x, y);
      } else {
        at[0] = x;
        if (both) at[1] = y;
      }
      return;
    }
    const uint32_t bits = bf16 ? pack<__nv_bfloat16>(x, y) : pack<__half>(x, y);
    uint16_t* at = reinterpret_cast<uint16_t*>(row) + c;
    if (paired && both) {
      *reinterpret_cast<uint32_t*>(at) = bits;
    } else {
      at[0] = static_cast<uint16_t>(bits);
      if (both) at[1] = static_cast<uint16_t>(bits >> 16);
    }
  }
};

}  // namespace headwater::cuda::mma
