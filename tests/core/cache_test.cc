// append and gather over every format, layout and scale; single records.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "headwater/headwater.h"
#include "src/formats/bf16.h"
#include "src/formats/f16.h"

namespace headwater {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

int32_t usual_width(Format format) { return format_info(format).fixed_width != 0 ? format_info(format).fixed_width : 96; }

// A store of one or two tensors of `format`, in memory of its own, poisoned.
struct Store {
  Format format;
  int32_t width;
  int32_t page_size;
  int64_t pages;
  std::vector<std::byte> k, v, k_scales, v_scales;
  std::vector<float> k_scale, v_scale;
  Source source;

  Store(Format f, int32_t heads, int32_t page, int64_t n, bool shared) : format(f), width(usual_width(f)), page_size(page), pages(n) {
    const FormatInfo& info = format_info(f);
    source.heads = heads;
    source.shared = shared;
    source.value_width = shared ? width : 0;
    source.addressing = {.kind = AddressingKind::kPool, .page_size = page, .num_pages = n};
    for (int t = 0; t < (shared ? 1 : 2); ++t) {
      KvTensor& tensor = t == 0 ? source.k : source.v;
      std::vector<std::byte>& data = t == 0 ? k : v;
      std::vector<std::byte>& scales = t == 0 ? k_scales : v_scales;
      std::vector<float>& scale = t == 0 ? k_scale : v_scale;
      data.assign(static_cast<size_t>(record_page_bytes(f, width, page) * n * heads), std::byte{0xff});
      tensor.data = data.data();
      tensor.format = f;
      tensor.width = width;
      if (info.scales_apart) {
        scales.assign(static_cast<size_t>(record_scale_bytes(f, width) * page * n * heads), std::byte{0xff});
        tensor.scales = scales.data();
      }
      if (info.takes_scale) {
        for (int32_t h = 0; h < (shared ? 1 : heads); ++h) scale.push_back(0.5F + 0.25F * static_cast<float>(h + 2 * t));
        tensor.scale = Scale::array(scale.data(), static_cast<int32_t>(scale.size()));
      }
    }
  }
  [[nodiscard]] float scale_of(int t, int32_t head) const {
    const std::vector<float>& scale = t == 0 ? k_scale : v_scale;
    return scale.empty() ? 1.0F : scale[scale.size() == 1 ? 0 : static_cast<size_t>(head)];
  }
  [[nodiscard]] std::vector<std::byte> bytes() const {
    std::vector<std::byte> all = k;
    for (const auto* more : {&v, &k_scales, &v_scales}) all.insert(all.end(), more->begin(), more->end());
    return all;
  }
};

std::vector<float> random_rows(size_t n, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> rows(n);
  for (float& x : rows) x = normal(random);
  return rows;
}

// What one record holds after a trip through its codec.
std::vector<float> round_trip(Format format, int32_t width, const float* values, float scale) {
  std::vector<std::byte> row(static_cast<size_t>(record_row_bytes(format, width)));
  std::vector<std::byte> scales(static_cast<size_t>(record_scale_bytes(format, width)) + 64);
  std::vector<float> decoded(static_cast<size_t>(width));
  EXPECT_TRUE(encode_record(format, width, values, row.data(), scales.data(), scale).ok());
  EXPECT_TRUE(decode_record(format, width, row.data(), scales.data(), decoded.data(), scale).ok());
  return decoded;
}

TEST(Cache, AppendedRowsComeBackInEveryFormat) {
  for (const FormatInfo& info : all_formats()) {
    for (const bool shared : {false, true}) {
      const int32_t heads = info.planar ? 1 : 2;
      Store s(info.format, heads, 4, 3, shared);
      const auto width = static_cast<size_t>(s.width);
      const std::array<int64_t, 4> slots{11, -1, 0, 6};
      const std::vector<float> k = random_rows(4 * static_cast<size_t>(heads) * width, 1);
      const std::vector<float> v = random_rows(4 * static_cast<size_t>(heads) * width, 2);
      AppendRows rows;
      rows.k = k.data();
      rows.v = shared ? nullptr : v.data();
      rows.type = Type::kF32;
      rows.count = 4;
      const Status status = append(s.source, rows, slots.data());
      ASSERT_TRUE(status.ok()) << info.name << ": " << status.message();
      const std::array<int64_t, 3> read{0, 6, 11};
      const std::array<size_t, 3> from{2, 3, 0};
      std::vector<float> k_out(3 * static_cast<size_t>(heads) * width, kNan);
      std::vector<float> v_out = k_out;
      ASSERT_TRUE(gather(s.source, read.data(), 3, k_out.data(), v_out.data()).ok()) << info.name;
      for (size_t i = 0; i < 3; ++i) {
        for (int32_t h = 0; h < heads; ++h) {
          const size_t at = (i * static_cast<size_t>(heads) + static_cast<size_t>(h)) * width;
          const size_t in = (from[i] * static_cast<size_t>(heads) + static_cast<size_t>(h)) * width;
          const std::vector<float> k_expected = round_trip(info.format, s.width, &k[in], s.scale_of(0, h));
          const std::vector<float> v_expected = shared ? k_expected : round_trip(info.format, s.width, &v[in], s.scale_of(1, h));
          double error = 0.0;
          double size = 0.0;
          for (size_t c = 0; c < width; ++c) {
            ASSERT_EQ(k_out[at + c], k_expected[c]) << info.name << " head " << h << " column " << c;
            ASSERT_EQ(v_out[at + c], v_expected[c]) << info.name << " head " << h << " column " << c;
            error += std::pow(double{k_out[at + c]} - double{k[in + c]}, 2.0);
            size += std::pow(double{k[in + c]}, 2.0);
          }
          EXPECT_LT(std::sqrt(error / size), 0.2) << info.name;  // four bits cost about 0.1
        }
      }
    }
  }
}

TEST(Cache, OtherSlotsKeepTheirBytes) {
  for (const FormatInfo& info : all_formats()) {
    Store s(info.format, 1, 4, 2, true);
    const std::vector<float> k = random_rows(static_cast<size_t>(s.width), 3);
    AppendRows rows;
    rows.k = k.data();
    rows.type = Type::kF32;
    rows.count = 1;
    const std::vector<std::byte> before = s.bytes();
    const int64_t skip = -7;
    ASSERT_TRUE(append(s.source, rows, &skip).ok());
    EXPECT_EQ(s.bytes(), before) << info.name;
    const int64_t slot = 5;
    ASSERT_TRUE(append(s.source, rows, &slot).ok());
    const std::vector<std::byte> after = s.bytes();
    size_t changed = 0;
    for (size_t i = 0; i < after.size(); ++i) changed += after[i] != before[i] ? 1 : 0;
    EXPECT_GT(changed, 0U);
    const int64_t own = record_row_bytes(info.format, s.width) + record_scale_bytes(info.format, s.width) + (info.planar ? 32 : 0);
    EXPECT_LE(changed, static_cast<size_t>(own)) << info.name;
  }
}

TEST(Cache, KeysInTwoPartsOfSixteenBits) {
  for (const Type type : {Type::kBf16, Type::kF16}) {
    Store s(Format::kF32, 2, 4, 1, true);
    const auto encode = [&](float x) { return type == Type::kF16 ? formats::encode_f16(x) : formats::encode_bf16(x); };
    std::vector<uint16_t> nope(2 * 2 * 100);  // rows padded from 80 columns to 100
    std::vector<uint16_t> rope(2 * 16);       // one head for all: expanded
    for (size_t i = 0; i < nope.size(); ++i) nope[i] = encode(static_cast<float>(i));
    for (size_t i = 0; i < rope.size(); ++i) rope[i] = encode(-static_cast<float>(i));
    AppendRows rows;
    rows.k = nope.data();
    rows.k_tail = rope.data();
    rows.k_tail_width = 16;
    rows.type = type;
    rows.count = 2;
    rows.k_row_stride_bytes = 400;
    rows.k_head_stride_bytes = 200;
    rows.k_tail_row_stride_bytes = 32;
    rows.k_tail_head_stride_bytes = 0;
    const std::array<int64_t, 2> slots{3, 1};
    const Status status = append(s.source, rows, slots.data());
    ASSERT_TRUE(status.ok()) << status.message();
    std::vector<float> out(2 * 2 * 96);
    ASSERT_TRUE(gather(s.source, slots.data(), 2, out.data(), nullptr).ok());
    const auto decode = [&](uint16_t x) { return type == Type::kF16 ? formats::decode_f16(x) : formats::decode_bf16(x); };
    for (size_t i = 0; i < 2; ++i) {
      for (size_t h = 0; h < 2; ++h) {
        for (size_t c = 0; c < 96; ++c) {
          const float expected = decode(c < 80 ? nope[(i * 2 + h) * 100 + c] : rope[i * 16 + c - 80]);
          ASSERT_EQ(out[(i * 2 + h) * 96 + c], expected);
        }
      }
    }
  }
}

// A35, A40: [pages, 2, heads, page_size, d], K and V interleaved and heads first. No size is guessed from: P = heads = 4.
TEST(Cache, InterleavedHeadFirstLayoutIsHonouredAsGiven) {
  constexpr int64_t kPages = 2, kHeads = 4, kPage = 4, kDim = 8;
  std::vector<float> cache(kPages * 2 * kHeads * kPage * kDim, -1.0F);
  Source s;
  s.heads = kHeads;
  s.addressing = {.kind = AddressingKind::kPool, .page_size = kPage, .num_pages = kPages};
  for (KvTensor* t : {&s.k, &s.v}) {
    t->data = cache.data() + (t == &s.v ? kHeads * kPage * kDim : 0);
    t->format = Format::kF32;
    t->width = kDim;
    t->row_stride_bytes = kDim * 4;
    t->head_stride_bytes = kPage * kDim * 4;
    t->page_stride_bytes = 2 * kHeads * kPage * kDim * 4;
  }
  const std::vector<float> k = random_rows(kHeads * kDim, 4);
  const std::vector<float> v = random_rows(kHeads * kDim, 5);
  AppendRows rows;
  rows.k = k.data();
  rows.v = v.data();
  rows.type = Type::kF32;
  rows.count = 1;
  const int64_t slot = 4 + 2;
  const Status status = append(s, rows, &slot);
  ASSERT_TRUE(status.ok()) << status.message();
  for (int64_t h = 0; h < kHeads; ++h) {
    for (int64_t c = 0; c < kDim; ++c) {
      const int64_t at = (((1 * 2 + 0) * kHeads + h) * kPage + 2) * kDim + c;
      EXPECT_EQ(cache[static_cast<size_t>(at)], k[static_cast<size_t>(h * kDim + c)]);
      EXPECT_EQ(cache[static_cast<size_t>(at + kHeads * kPage * kDim)], v[static_cast<size_t>(h * kDim + c)]);
    }
  }
  EXPECT_EQ(static_cast<int64_t>(std::count(cache.begin(), cache.end(), -1.0F)), static_cast<int64_t>(cache.size()) - 2 * kHeads * kDim);
}

TEST(Cache, PaddedAndStridedScales) {
  Store s(Format::kMxfp4, 1, 1, 4, true);
  std::vector<std::byte> scales(4 * 20, std::byte{0x55});  // rows of 3 scales, padded to 20
  s.source.k.scales = scales.data();
  s.source.k.scale_page_stride_bytes = 20;
  s.source.k.scale_row_stride_bytes = 20;
  const std::vector<float> k = random_rows(96, 6);
  AppendRows rows;
  rows.k = k.data();
  rows.type = Type::kF32;
  rows.count = 1;
  const int64_t slot = 2;
  ASSERT_TRUE(append(s.source, rows, &slot).ok());
  for (size_t i = 0; i < scales.size(); ++i) EXPECT_EQ(scales[i] == std::byte{0x55}, i < 40 || i >= 43) << i;
  std::vector<float> out(96);
  ASSERT_TRUE(gather(s.source, &slot, 1, out.data(), nullptr).ok());
  EXPECT_EQ(out, round_trip(Format::kMxfp4, 96, k.data(), s.scale_of(0, 0)));
}

struct CacheBreak {
  const char* message;
  void (*apply)(Store& s, AppendRows& rows, std::array<int64_t, 2>& slots);
};
TEST(Cache, RefusalsNameTheFieldAndLeaveTheCacheAlone) {
  const CacheBreak breaks[] = {
      {"slots[1] = 12: must be below the cache's 12 slots", [](Store&, AppendRows&, std::array<int64_t, 2>& x) { x[1] = 12; }},
      {"slots[0] = 9223372036854775807: must be below the cache's 12 slots",
       [](Store&, AppendRows&, std::array<int64_t, 2>& x) { x[0] = std::numeric_limits<int64_t>::max(); }},
      {"rows.type = i8: must be bf16, f16 or f32", [](Store&, AppendRows& r, std::array<int64_t, 2>&) { r.type = Type::kI8; }},
      {"rows.count = -1: must be at least 0", [](Store&, AppendRows& r, std::array<int64_t, 2>&) { r.count = -1; }},
      {"rows.k = null: must be given: the cache stores it", [](Store&, AppendRows& r, std::array<int64_t, 2>&) { r.k = nullptr; }},
      {"rows.v = null: must be given: the cache stores it", [](Store&, AppendRows& r, std::array<int64_t, 2>&) { r.v = nullptr; }},
      {"rows.k_tail_width = 96: must be from 0 to below cache.k.width = 96",
       [](Store&, AppendRows& r, std::array<int64_t, 2>&) { r.k_tail_width = 96; }},
      {"rows.k_tail = null: must be given: the cache stores it",
       [](Store&, AppendRows& r, std::array<int64_t, 2>&) { r.k_tail_width = 8; }},
      {"rows.k_tail_width = 0: must be at least 1 where rows.k_tail is given",
       [](Store&, AppendRows& r, std::array<int64_t, 2>&) { r.k_tail = r.k; }},
      {"rows.k_row_stride_bytes = 9223372036854775804: times 2 entries spans more than 2^58",
       [](Store&, AppendRows& r, std::array<int64_t, 2>&) { r.k_row_stride_bytes = std::numeric_limits<int64_t>::max() - 3; }},
      {"cache.k.width = 0: must be at least 1", [](Store& s, AppendRows&, std::array<int64_t, 2>&) { s.source.k.width = 0; }},
      {"cache.v.data = null: must be given: the cache has rows",
       [](Store& s, AppendRows&, std::array<int64_t, 2>&) { s.source.v.data = nullptr; }},
      {"cache.page_size = 0: must be at least 1",
       [](Store& s, AppendRows&, std::array<int64_t, 2>&) { s.source.addressing.page_size = 0; }},
      {"cache.k.row_stride_bytes = 0: elements of an output must not overlap; at least 96 needed",
       [](Store& s, AppendRows&, std::array<int64_t, 2>&) {
         s.source.k.row_stride_bytes = 0;
         s.source.k.page_stride_bytes = 768;
       }},
      {"cache.k.scale.data[1] = 0: rows are divided by it: must not be 0",
       [](Store& s, AppendRows&, std::array<int64_t, 2>&) { s.k_scale[1] = 0.0F; }},
      {"cache.v.scale.data[0] = nan: must be finite", [](Store& s, AppendRows&, std::array<int64_t, 2>&) { s.v_scale[0] = kNan; }},
  };
  for (const CacheBreak& b : breaks) {
    Store s(Format::kE4m3, 2, 4, 3, false);
    const std::vector<float> k(2 * 2 * 96, 1.0F);
    AppendRows rows;
    rows.k = k.data();
    rows.v = k.data();
    rows.type = Type::kF32;
    rows.count = 2;
    std::array<int64_t, 2> slots{1, 2};
    b.apply(s, rows, slots);
    const std::vector<std::byte> before = s.bytes();
    const Status status = append(s.source, rows, slots.data());
    EXPECT_EQ(status.code(), StatusCode::kInvalid);
    EXPECT_EQ(status.message(), b.message);
    EXPECT_EQ(s.bytes(), before);
  }
  Store s(Format::kE4m3, 1, 4, 3, true);
  std::vector<float> out(96, -1.0F);
  const std::array<int64_t, 2> slots{0, -1};
  EXPECT_EQ(gather(s.source, slots.data(), 2, out.data(), nullptr).message(),
            "slots[1] = -1: must be from 0 to below the cache's 12 slots");
  EXPECT_EQ(out, std::vector<float>(96, -1.0F));
  EXPECT_EQ(gather(s.source, slots.data(), -1, out.data(), nullptr).message(), "count = -1: must be at least 0");
  AppendRows rows;
  rows.k = out.data();
  rows.v = out.data();
  rows.count = 1;
  rows.type = Type::kF32;
  EXPECT_EQ(append(s.source, rows, slots.data()).message().find("rows.v = 0x"), 0U);
  rows.v = nullptr;
  EXPECT_EQ(append(s.source, rows, slots.data(), static_cast<BlockScaleRule>(9)).message(), "rule = 9: no such block-scale rule");
  EXPECT_EQ(append(s.source, rows, nullptr).message(), "slots = null: must be given: it says where rows live");
}

TEST(Record, RefusalsNameTheField) {
  std::vector<float> values(576, 1.0F);
  std::vector<std::byte> row(1024);
  const auto refusal = [&](Format format, int32_t width, const float* from, void* to, void* scales, float scale) {
    return encode_record(format, width, from, to, scales, scale).message();
  };
  EXPECT_EQ(refusal(Format::kBf16, 0, values.data(), row.data(), nullptr, 1.0F), "width = 0: must be at least 1");
  EXPECT_EQ(refusal(Format::kBf16, 577, values.data(), row.data(), nullptr, 1.0F), "width = 577: the largest supported is 576");
  EXPECT_EQ(refusal(Format::kFp8Ds656, 512, values.data(), row.data(), nullptr, 1.0F),
            "width = 512: records of fp8_ds_656 have 576 columns");
  EXPECT_EQ(refusal(static_cast<Format>(99), 8, values.data(), row.data(), nullptr, 1.0F), "format = Format(99): no such format");
  EXPECT_EQ(refusal(Format::kBf16, 8, nullptr, row.data(), nullptr, 1.0F), "values = null: must be given: it holds the decoded columns");
  EXPECT_EQ(refusal(Format::kBf16, 8, values.data(), nullptr, nullptr, 1.0F), "row = null: must be given: it holds the record");
  EXPECT_EQ(refusal(Format::kMxfp4, 32, values.data(), row.data(), nullptr, 1.0F),
            "scales = null: must be given: the format holds scales outside the row");
  EXPECT_EQ(refusal(Format::kE4m3, 8, values.data(), row.data(), nullptr, 0.0F), "scale = 0: values are divided by it: must not be 0");
  EXPECT_EQ(refusal(Format::kE4m3, 8, values.data(), row.data(), nullptr, kNan), "scale = nan: must be finite");
  EXPECT_EQ(refusal(Format::kBf16, 8, values.data(), row.data(), nullptr, 2.0F), "scale = 2: records of bf16 take no scale, leave 1");
}

}  // namespace
}  // namespace headwater
