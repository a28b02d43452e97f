#include "src/cpu/decode_tables.h"

#include "src/formats/e2m1.h"
#include "src/formats/e4m3.h"
#include "src/formats/e5m2.h"
#include "src/formats/e8m0.h"
#include "src/formats/f16.h"

namespace headwater::cpu {
namespace {

constexpr DecodeTables make_tables() {
  DecodeTables tables{};
  for (int code = 0; code < 256; ++code) {
    const auto bits = static_cast<uint8_t>(code);
    tables.e4m3[code] = formats::decode_e4m3(bits);
    tables.e5m2[code] = formats::decode_e5m2(bits);
    tables.e8m0[code] = formats::decode_e8m0(bits);
    if (code < 16) tables.e2m1[code] = formats::decode_e2m1(bits);
  }
  return tables;
}

}  // namespace

constinit const DecodeTables decode_tables = make_tables();

float f16_value(uint16_t bits) { return formats::decode_f16(bits); }

}  // namespace headwater::cpu
