// One number per float32 bit pattern from every codec and scale rule: host and device must agree on it.
#pragma once

#include <cstdint>

#include "src/formats/bf16.h"
#include "src/formats/block_scale.h"
#include "src/formats/e2m1.h"
#include "src/formats/e4m3.h"
#include "src/formats/e5m2.h"
#include "src/formats/e8m0.h"
#include "src/formats/f16.h"

namespace headwater::formats {

HEADWATER_HD uint64_t mix(uint64_t state, uint32_t word) { return (state ^ word) * 0x100000001b3U; }

// Pattern `index` of the sample: the first 65536 are small numbers that also serve as codes for the decoders.
HEADWATER_HD uint32_t sample_bits(uint32_t index) { return index < 65536U ? index : index * 2654435761U; }

HEADWATER_HD uint64_t codec_hash(uint32_t index) {
  const uint32_t bits = sample_bits(index);
  const float x = bits_float(bits);
  uint64_t h = 0xcbf29ce484222325U;
  h = mix(h, encode_f16(x));
  h = mix(h, encode_bf16(x));
  h = mix(h, encode_e4m3(x));
  h = mix(h, encode_e5m2(x));
  h = mix(h, encode_e2m1(x));
  h = mix(h, encode_e8m0(x));
  const uint32_t magnitude = bits & 0x7fffffffU;
  if (magnitude < kF32Inf) {
    for (int rule = 0; rule < 3; ++rule) {
      h = mix(h, static_cast<uint32_t>(block_exponent(magnitude, kE2m1Block, static_cast<BlockScaleRule>(rule))));
      h = mix(h, static_cast<uint32_t>(block_exponent(magnitude, kE4m3Block, static_cast<BlockScaleRule>(rule))));
    }
  }
  if (index < 65536U) {
    h = mix(h, float_bits(decode_f16(static_cast<uint16_t>(index))));
    h = mix(h, float_bits(decode_bf16(static_cast<uint16_t>(index))));
    h = mix(h, float_bits(decode_e4m3(static_cast<uint8_t>(index))));
    h = mix(h, float_bits(decode_e5m2(static_cast<uint8_t>(index))));
    h = mix(h, float_bits(decode_e2m1(static_cast<uint8_t>(index & 15U))));
    h = mix(h, float_bits(decode_e8m0(static_cast<uint8_t>(index))));
  }
  return h;
}

// Fills hashes[count] on the current CUDA device (count a multiple of 256). False: no device, or it failed.
bool device_codec_hashes(uint64_t* hashes, uint32_t count);

}  // namespace headwater::formats
