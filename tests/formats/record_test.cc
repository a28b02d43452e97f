// Every record against golden bytes and values that numpy and ml_dtypes made without any code of ours.
#include "src/formats/record.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "src/core/resolved.h"
#include "src/formats/bits.h"
#include "tests/formats/golden.h"
#include "tests/support/hostile_float_env.h"

namespace headwater::formats {
namespace {

using golden::canonical_bits;
using golden::Case;

const std::byte* bytes_of(const std::vector<char>& data) { return reinterpret_cast<const std::byte*>(data.data()); }

std::string place(const Case& c, int64_t slot) {
  return c.text("format") + " width " + std::to_string(c.integer("width")) + " page_size " + std::to_string(c.integer("page_size")) +
         " slot " + std::to_string(slot);
}

// A source that holds the case's cache, so that the address arithmetic of the kernels is under test too.
ResolvedSource source_of(const Case& c, const RecordLayout& layout) {
  ResolvedSource source;
  source.addressing = AddressingKind::kBlockTable;
  source.page_size = static_cast<int32_t>(c.integer("page_size"));
  source.num_slots = c.integer("page_size") * c.integer("num_pages");
  source.k.layout = layout;
  source.k.data = bytes_of(c.bytes("data"));
  source.k.row_stride = c.integer("row_stride");
  source.k.page_stride = c.integer("page_stride");
  if (c.has("scales")) {
    source.k.scales = bytes_of(c.bytes("scales"));
    source.k.scale_row_stride = c.integer("scale_row_stride");
    source.k.scale_page_stride = c.integer("scale_page_stride");
    source.k.scale_block_stride = c.integer("scale_block_stride");
  }
  return source;
}

void check_decode(const Case& c) {
  const Format format = format_by_name(c.text("format")).value();
  const auto width = static_cast<int32_t>(c.integer("width"));
  const RecordLayout layout = resolve(format, width);
  ASSERT_EQ(record_row_bytes(format, width), c.integer("row_bytes"));
  ASSERT_EQ(record_page_bytes(format, width, static_cast<int32_t>(c.integer("page_size"))), c.integer("dense_page_bytes"));
  if (c.has("scales")) {
    ASSERT_EQ(record_scale_bytes(format, width), c.integer("scale_row_bytes"));
  }
  const ResolvedSource source = source_of(c, layout);
  const float g = c.array<float>("g").at(0);
  const std::vector<uint64_t> hashes = c.array<uint64_t>("hashes");
  const std::vector<int64_t> shown = c.array<int64_t>("shown");
  const std::vector<float> shown_values = c.array<float>("values");
  ASSERT_EQ(static_cast<int64_t>(hashes.size()), source.num_slots);
  std::vector<float> values(static_cast<size_t>(width));
  for (int64_t slot = 0; slot < source.num_slots; ++slot) {
    const RowRef ref = record_at(source, source.k, slot, 0);
    decode_row(layout, ref, g, values.data());
    EXPECT_EQ(golden::row_hash(values.data(), values.size()), hashes[static_cast<size_t>(slot)]) << place(c, slot);
    for (int32_t column = 0; column < width; ++column) {
      const float one = decode_column(layout, ref, column, g);
      ASSERT_EQ(canonical_bits(one), canonical_bits(values[static_cast<size_t>(column)])) << place(c, slot) << " column " << column;
    }
    const auto at = std::find(shown.begin(), shown.end(), slot);
    if (at == shown.end()) continue;
    const float* expected = shown_values.data() + (at - shown.begin()) * width;
    for (int32_t column = 0; column < width; ++column) {
      ASSERT_EQ(canonical_bits(values[static_cast<size_t>(column)]), canonical_bits(expected[column]))
          << place(c, slot) << " column " << column << ": " << values[static_cast<size_t>(column)] << " for " << expected[column];
    }
  }
}

// The parameter: the calling thread has FTZ, DAZ and another rounding mode set.
class Records : public testing::TestWithParam<bool> {};

TEST_P(Records, DecodeTheGoldenPages) {
  std::set<int64_t> page_sizes;
  for (const FormatInfo& info : all_formats()) {
    const std::vector<Case> cases = golden::read(std::string(info.name));
    const HostileFloatEnv env(GetParam());
    EXPECT_EQ(cases.size(), 3U) << info.name;
    for (const Case& c : cases) {
      EXPECT_EQ(c.text("format"), info.name);
      page_sizes.insert(c.integer("page_size"));
      check_decode(c);
    }
  }
  EXPECT_EQ(page_sizes, (std::set<int64_t>{2, 64, 256}));
}

TEST_P(Records, EncodeToTheGoldenBytes) {
  const std::vector<Case> cases = golden::read("encode");
  const std::vector<float> inputs = cases.at(0).array<float>("inputs");
  const HostileFloatEnv env(GetParam());
  std::set<std::string> formats;
  for (size_t i = 1; i < cases.size(); ++i) {
    const Case& c = cases[i];
    formats.insert(c.text("format"));
    const auto width = static_cast<int32_t>(c.integer("width"));
    const RecordLayout layout = resolve(format_by_name(c.text("format")).value(), width);
    const auto rule = static_cast<BlockScaleRule>(c.integer("rule"));
    const float g = c.array<float>("g").at(0);
    const auto row_bytes = static_cast<size_t>(layout.row_bytes);
    const size_t scale_bytes = c.has("scales") ? static_cast<size_t>(c.integer("scale_row_bytes")) : 0;
    const auto element_bytes = layout.apart_bytes > 0 ? type_bits(layout.segments[0].scale) / 8 : 0;
    std::vector<std::byte> row(row_bytes);
    std::vector<std::byte> scales(scale_bytes);
    for (int64_t r = 0; r < c.integer("count"); ++r) {
      std::fill(row.begin(), row.end(), std::byte{0xa5});
      std::fill(scales.begin(), scales.end(), std::byte{0xa5});
      encode_row(layout, inputs.data() + r * 576, g, rule, row.data(), scales.data(), element_bytes);
      const std::byte* expected = bytes_of(c.bytes("rows")) + static_cast<size_t>(r) * row_bytes;
      for (size_t k = 0; k < row_bytes; ++k) {
        ASSERT_EQ(row[k], expected[k]) << c.text("format") << " width " << width << " rule " << c.integer("rule") << " g " << g << " row "
                                       << r << " byte " << k;
      }
      if (scale_bytes == 0) continue;
      expected = bytes_of(c.bytes("scales")) + static_cast<size_t>(r) * scale_bytes;
      for (size_t k = 0; k < scale_bytes; ++k) {
        ASSERT_EQ(scales[k], expected[k]) << c.text("format") << " width " << width << " rule " << c.integer("rule") << " g " << g
                                          << " row " << r << " scale byte " << k;
      }
    }
  }
  EXPECT_EQ(formats.size(), all_formats().size());
}

// Encodes, then decodes. Scales held apart are written with gaps between blocks.
std::vector<float> round_trip(Format format, const std::vector<float>& values, float g = 1.0F) {
  const auto width = static_cast<int32_t>(values.size());
  const RecordLayout layout = resolve(format, width);
  std::vector<std::byte> row(static_cast<size_t>(layout.row_bytes));
  std::vector<std::byte> scales(4096);
  encode_row(layout, values.data(), g, BlockScaleRule::kRoundUp, row.data(), scales.data(), 12);
  std::vector<float> decoded(values.size());
  decode_row(layout, {row.data(), scales.data(), 12}, g, decoded.data());
  return decoded;
}

int32_t some_width(const FormatInfo& info) { return info.fixed_width > 0 ? info.fixed_width : 200; }

TEST_P(Records, NanNeverTurnsIntoANumber) {
  const HostileFloatEnv env(GetParam());
  for (const FormatInfo& info : all_formats()) {
    const int32_t width = some_width(info);
    for (int32_t column = 0; column < width; column += 7) {
      std::vector<float> values(static_cast<size_t>(width), 1.0F);
      values[static_cast<size_t>(column)] = bits_float(kF32Nan);
      const std::vector<float> decoded = round_trip(info.format, values);
      EXPECT_EQ(canonical_bits(decoded[static_cast<size_t>(column)]), kF32Nan) << info.name << " column " << column;
    }
  }
}

// A NaN spreads over its block and no further.
TEST_P(Records, NanStaysInItsBlock) {
  const HostileFloatEnv env(GetParam());
  for (const FormatInfo& info : all_formats()) {
    const int32_t width = some_width(info);
    std::vector<float> values(static_cast<size_t>(width), 1.0F);
    values[0] = bits_float(kF32Nan);
    const Segment& first = resolve(info.format, width).segments[0];
    const bool element_holds_nan = first.element != Type::kE2m1 && first.element != Type::kI8;
    const int32_t spoiled = element_holds_nan ? 1 : std::min(first.block, first.column_end);
    const std::vector<float> decoded = round_trip(info.format, values);
    for (int32_t column = 0; column < width; ++column) {
      const bool nan = canonical_bits(decoded[static_cast<size_t>(column)]) == kF32Nan;
      EXPECT_EQ(nan, column < spoiled) << info.name << " column " << column;
    }
  }
}

TEST_P(Records, ZerosStayZero) {
  const HostileFloatEnv env(GetParam());
  for (const FormatInfo& info : all_formats()) {
    for (const float zero : {0.0F, -0.0F}) {
      for (const float value : round_trip(info.format, std::vector<float>(static_cast<size_t>(some_width(info)), zero))) {
        EXPECT_EQ(canonical_bits(value) & 0x7fffffffU, 0U) << info.name;
      }
    }
  }
}

// Infinities read back with their sign: infinite where element or product allow it, otherwise the largest magnitude of the block.
TEST_P(Records, InfinitiesKeepTheirSignAndNeverMakeNan) {
  const HostileFloatEnv env(GetParam());
  for (const FormatInfo& info : all_formats()) {
    const int32_t width = some_width(info);
    std::vector<float> values(static_cast<size_t>(width), 0.5F);
    values[1] = bits_float(kF32Inf);
    values[2] = -bits_float(kF32Inf);
    const std::vector<float> decoded = round_trip(info.format, values);
    for (int32_t column = 0; column < width; ++column) {
      EXPECT_NE(canonical_bits(decoded[static_cast<size_t>(column)]), kF32Nan) << info.name << " column " << column;
    }
    EXPECT_GT(decoded[1], 1.0F) << info.name;
    EXPECT_LT(decoded[2], -1.0F) << info.name;
  }
}

INSTANTIATE_TEST_SUITE_P(FloatEnv, Records, testing::Bool(),
                         [](const testing::TestParamInfo<bool>& param) { return param.param ? "hostile" : "plain"; });

TEST(RecordTable, EveryWidthHasALayoutWithoutOverlap) {
  for (const FormatInfo& info : all_formats()) {
    for (int32_t width = 1; width <= 576; ++width) {
      if (info.fixed_width > 0 && width != info.fixed_width) continue;
      if (info.format == Format::kMxfp4RopeBf16 && width < 65) continue;
      const RecordLayout layout = resolve(info.format, width);
      std::vector<int> used(static_cast<size_t>(layout.row_bytes), 0);
      int32_t column = 0;
      for (int32_t i = 0; i < layout.num_segments; ++i) {
        const Segment& s = layout.segments[i];
        EXPECT_EQ(s.column_begin, column) << info.name;
        column = s.column_end;
        const int32_t columns = s.column_end - s.column_begin;
        const int32_t blocks = (columns + s.block - 1) / s.block;
        for (int32_t block = 0; block < blocks; ++block) {
          const int32_t first = block * s.block;
          const int32_t last = std::min(columns, first + s.block);
          const int32_t begin =
              s.data_block_stride > 0 ? s.data_offset + block * s.data_block_stride : s.data_offset + first * type_bits(s.element) / 8;
          const int32_t bytes = ((last - first) * type_bits(s.element) + 7) / 8;
          for (int32_t at = begin; at < begin + bytes; ++at) ++used.at(static_cast<size_t>(at));
          if (s.place != ScalePlace::kInRow) continue;
          const int32_t scale_at =
              s.scale_offset + (s.order == ScaleOrder::kBy4Groups ? 8 * (block & 3) + (block >> 2) : block * s.scale_stride);
          for (int32_t at = scale_at; at < scale_at + type_bits(s.scale) / 8; ++at) ++used.at(static_cast<size_t>(at));
        }
      }
      EXPECT_EQ(column, width) << info.name;
      EXPECT_LE(*std::max_element(used.begin(), used.end()), 1) << info.name << " width " << width;
    }
  }
}

TEST(RecordTable, NamesAndAliases) {
  for (const FormatInfo& info : all_formats()) EXPECT_EQ(format_by_name(info.name), info.format);
  EXPECT_EQ(format_by_name("fp16"), Format::kF16);
  EXPECT_EQ(format_by_name("fp32"), Format::kF32);
  EXPECT_EQ(format_by_name("fp8"), Format::kE4m3);
  EXPECT_EQ(format_by_name("fp8_e4m3"), Format::kE4m3);
  EXPECT_EQ(format_by_name("fp8_e5m2"), Format::kE5m2);
  EXPECT_EQ(format_by_name("fp4"), std::nullopt);
  EXPECT_EQ(format_by_name(""), std::nullopt);
}

TEST(RecordTable, PublishedSizes) {
  EXPECT_EQ(record_page_bytes(Format::kFp8Ds584, 512, 2), 1728);
  EXPECT_EQ(record_page_bytes(Format::kFp8Ds584, 512, 64), 37440);
  EXPECT_EQ(record_page_bytes(Format::kFp8Ds584, 512, 256), 149760);
  EXPECT_EQ(record_row_bytes(Format::kQ8_0, 33), 68);
  EXPECT_EQ(record_row_bytes(Format::kMxfp4, 576), 288);
  EXPECT_EQ(record_scale_bytes(Format::kMxfp4, 576), 18);
  EXPECT_EQ(record_scale_bytes(Format::kInt8, 128), 4);
  EXPECT_EQ(record_row_bytes(Format::kMxfp4RopeBf16, 576), 256 + 16 + 128);
  EXPECT_EQ(record_row_bytes(Format::kMxfp4RopeBf16, 65), 16 + 128);
  EXPECT_EQ(record_page_bytes(Format::kNvfp4Ds384, 512, 64), 384 * 64);
}

}  // namespace
}  // namespace headwater::formats
