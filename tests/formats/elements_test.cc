// Every code of every element and scale type, and encoders at every tie, against tables written by numpy and ml_dtypes.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>

#include "src/formats/bf16.h"
#include "src/formats/e2m1.h"
#include "src/formats/e4m3.h"
#include "src/formats/e5m2.h"
#include "src/formats/e8m0.h"
#include "src/formats/f16.h"
#include "tests/formats/golden.h"
#include "tests/support/hostile_float_env.h"

namespace headwater::formats {
namespace {

using golden::canonical_bits;
using golden::Case;

struct Codec {
  std::function<float(uint32_t)> decode;
  std::function<uint32_t(float)> encode;
};

Codec codec_of(const std::string& type) {
  if (type == "f16") return {[](uint32_t c) { return decode_f16(static_cast<uint16_t>(c)); }, encode_f16};
  if (type == "bf16") return {[](uint32_t c) { return decode_bf16(static_cast<uint16_t>(c)); }, encode_bf16};
  if (type == "e4m3") return {[](uint32_t c) { return decode_e4m3(static_cast<uint8_t>(c)); }, encode_e4m3};
  if (type == "e5m2") return {[](uint32_t c) { return decode_e5m2(static_cast<uint8_t>(c)); }, encode_e5m2};
  if (type == "e2m1") return {[](uint32_t c) { return decode_e2m1(static_cast<uint8_t>(c)); }, encode_e2m1};
  return {[](uint32_t c) { return decode_e8m0(static_cast<uint8_t>(c)); }, encode_e8m0};
}

uint32_t code_at(const Case& c, const std::string& name, size_t index, bool two_bytes) {
  const std::vector<char>& bytes = c.bytes(name);
  const auto at = [&](size_t i) { return static_cast<uint32_t>(static_cast<uint8_t>(bytes.at(i))); };
  return two_bytes ? at(2 * index) | at(2 * index + 1) << 8 : at(index);
}

// The parameter: the calling thread has FTZ, DAZ and another rounding mode set.
class Elements : public testing::TestWithParam<bool> {};

TEST_P(Elements, EveryCodeDecodesAsMlDtypesSays) {
  const std::vector<Case> cases = golden::read("elements");
  const HostileFloatEnv env(GetParam());
  ASSERT_EQ(cases.size(), 6U);
  for (const Case& c : cases) {
    const Codec codec = codec_of(c.text("type"));
    if (c.has("values")) {
      const std::vector<float> values = c.array<float>("values");
      for (uint32_t code = 0; code < values.size(); ++code) {
        EXPECT_EQ(canonical_bits(codec.decode(code)), canonical_bits(values[code])) << c.text("type") << " code " << code;
      }
      continue;
    }
    const std::vector<uint64_t> hashes = c.array<uint64_t>("hashes");
    ASSERT_EQ(hashes.size(), 256U);
    for (uint32_t high = 0; high < 256; ++high) {
      float values[256];
      for (uint32_t low = 0; low < 256; ++low) values[low] = codec.decode(high * 256 + low);
      EXPECT_EQ(golden::row_hash(values, 256), hashes[high]) << c.text("type") << " codes from " << high * 256;
    }
  }
}

TEST_P(Elements, EncodersRoundAsMlDtypesDoes) {
  const std::vector<Case> cases = golden::read("elements");
  const HostileFloatEnv env(GetParam());
  for (const Case& c : cases) {
    const std::string type = c.text("type");
    const Codec codec = codec_of(type);
    const std::vector<float> inputs = c.array<float>("inputs");
    ASSERT_GT(inputs.size(), 200U);
    for (size_t i = 0; i < inputs.size(); ++i) {
      EXPECT_EQ(codec.encode(inputs[i]), code_at(c, "codes", i, type == "f16" || type == "bf16"))
          << type << " of bits " << std::hex << float_bits(inputs[i]);
    }
  }
}

TEST_P(Elements, EveryCodeThatIsANumberEncodesToItself) {
  const HostileFloatEnv env(GetParam());
  for (const char* type : {"f16", "bf16", "e4m3", "e5m2", "e2m1", "e8m0"}) {
    const Codec codec = codec_of(type);
    const uint32_t codes = type[0] != 'e' ? 65536 : type[1] == '2' ? 16 : 256;
    for (uint32_t code = 0; code < codes; ++code) {
      const uint32_t magnitude = float_bits(codec.decode(code)) & 0x7fffffffU;
      const bool keeps_infinity = type[0] != 'e';
      if (magnitude > kF32Inf || (magnitude == kF32Inf && !keeps_infinity)) continue;
      EXPECT_EQ(codec.encode(codec.decode(code)), code) << type;
    }
  }
}

TEST_P(Elements, PolicyOfWhatIsNotFinite) {
  const HostileFloatEnv env(GetParam());
  const float inf = bits_float(kF32Inf);
  for (const uint32_t bits : {kF32Nan, 0xffc00000U, 0x7f800001U, 0xffffffffU}) {
    const float nan = bits_float(bits);
    EXPECT_EQ(encode_f16(nan), 0x7e00);
    EXPECT_EQ(encode_bf16(nan), 0x7fc0);
    EXPECT_EQ(encode_e4m3(nan), 0x7f);
    EXPECT_EQ(encode_e5m2(nan), 0x7e);
    EXPECT_EQ(encode_e2m1(nan), 0);
    EXPECT_EQ(encode_e8m0(nan), 255);
  }
  EXPECT_EQ(encode_f16(inf), 0x7c00);
  EXPECT_EQ(encode_f16(-inf), 0xfc00);
  EXPECT_EQ(encode_bf16(inf), 0x7f80);
  EXPECT_EQ(encode_bf16(bits_float(kF32Max)), 0x7f80);
  EXPECT_EQ(encode_e4m3(inf), 0x7e);
  EXPECT_EQ(encode_e4m3(-inf), 0xfe);
  EXPECT_EQ(encode_e5m2(inf), 0x7b);
  EXPECT_EQ(encode_e5m2(-inf), 0xfb);
  EXPECT_EQ(encode_e2m1(inf), 7);
  EXPECT_EQ(encode_e2m1(-inf), 15);
  EXPECT_EQ(encode_e8m0(inf), 255);
  EXPECT_EQ(encode_e8m0(-1.0F), 255);
  EXPECT_EQ(encode_e8m0(0.0F), 0);
  EXPECT_EQ(encode_e8m0(-0.0F), 0);
  EXPECT_EQ(encode_e8m0(bits_float(kF32Max)), 254);
  EXPECT_EQ(encode_e8m0(bits_float(1)), 0);
  EXPECT_EQ(encode_e8m0(bits_float(0x005fffff)), 0);
  EXPECT_EQ(encode_e8m0(bits_float(0x00600000)), 1);
  EXPECT_EQ(float_bits(decode_e8m0(0)), 0x00400000U);
  EXPECT_EQ(e8m0_from_exponent(-128), 0);
  EXPECT_EQ(e8m0_from_exponent(128), 254);
}

INSTANTIATE_TEST_SUITE_P(FloatEnv, Elements, testing::Bool(),
                         [](const testing::TestParamInfo<bool>& param) { return param.param ? "hostile" : "plain"; });

}  // namespace
}  // namespace headwater::formats
