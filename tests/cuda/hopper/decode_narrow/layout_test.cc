// The data path of a tile on the host: matrix loads, products and the order of entries as the kernel has them, against plain loops.
#include "src/cuda/hopper/decode_narrow/layout.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <random>
#include <set>
#include <vector>

#include "src/cuda/hopper/decode_narrow/config.h"
#include "src/formats/bf16.h"
#include "src/formats/e4m3.h"

namespace headwater::cuda::narrow {
namespace {

using Latent = Config<576, 512, true, false, 32, 5, Copies::kBulk>;
using LatentE4m3 = Config<576, 512, true, true, 64, 5, Copies::kBulk>;
using Apart = Config<128, 128, false, false, 64, 6, Copies::kAsync>;

struct Pair {
  float x = 0.0F;
  float y = 0.0F;
};
using Words = std::array<std::array<uint32_t, 4>, 32>;  // [lane][register]
using Fragment = std::array<std::array<Pair, 4>, 32>;   // left operand
using Columns = std::array<std::array<Pair, 2>, 32>;    // right operand
using Sums = std::array<std::array<float, 4>, 32>;

uint16_t element(const std::vector<uint8_t>& memory, unsigned at) { return static_cast<uint16_t>(memory[at] | memory[at + 1] << 8); }

template <class Address>
Words load_matrices(const std::vector<uint8_t>& memory, bool transposed, const Address& address) {
  Words words{};
  for (unsigned lane = 0; lane < 32; ++lane) {
    for (unsigned j = 0; j < 4; ++j) {
      const unsigned g = lane / 4;
      const unsigned t = lane % 4;
      const uint16_t first = transposed ? element(memory, address(8 * j + 2 * t) + 2 * g) : element(memory, address(8 * j + g) + 4 * t);
      const uint16_t second =
          transposed ? element(memory, address(8 * j + 2 * t + 1) + 2 * g) : element(memory, address(8 * j + g) + 4 * t + 2);
      words[lane][j] = first | static_cast<uint32_t>(second) << 16;
    }
  }
  return words;
}

void multiply_add(Sums* c, const Fragment& a, const Columns& b) {
  float left[16][16];
  float right[16][8];
  for (unsigned lane = 0; lane < 32; ++lane) {
    const unsigned g = lane / 4;
    const unsigned t = lane % 4;
    for (unsigned r = 0; r < 4; ++r) {
      left[g + r % 2 * 8][2 * t + r / 2 * 8] = a[lane][r].x;
      left[g + r % 2 * 8][2 * t + r / 2 * 8 + 1] = a[lane][r].y;
    }
    for (unsigned r = 0; r < 2; ++r) {
      right[2 * t + 8 * r][g] = b[lane][r].x;
      right[2 * t + 8 * r + 1][g] = b[lane][r].y;
    }
  }
  for (unsigned lane = 0; lane < 32; ++lane) {
    for (unsigned r = 0; r < 4; ++r) {
      for (unsigned k = 0; k < 16; ++k) (*c)[lane][r] += left[lane / 4 + r / 2 * 8][k] * right[k][lane % 4 * 2 + r % 2];
    }
  }
}

Pair from_bf16(uint32_t word) {
  return {formats::decode_bf16(static_cast<uint16_t>(word)), formats::decode_bf16(static_cast<uint16_t>(word >> 16))};
}
Pair from_e4m3(uint32_t half_word) {
  return {formats::decode_e4m3(static_cast<uint8_t>(half_word)), formats::decode_e4m3(static_cast<uint8_t>(half_word >> 8))};
}

template <class C>
class Tile {
 public:
  Tile() : memory_(C::kStageBytes, 0xff), q_(kRows * C::kDqk), w_(kRows * C::kTile) {
    std::mt19937 engine(7);
    std::uniform_int_distribution<int> small(-8, 8);
    for (float& q : q_) q = static_cast<float>(small(engine));
    for (float& w : w_) w = static_cast<float>(small(engine));
    for (unsigned e = 0; e < C::kTile; ++e) {
      for (unsigned d = 0; d < C::kDqk; ++d) store(C::Keys::offset_of_entry(e), d, static_cast<float>(small(engine)));
      for (unsigned d = 0; !C::kShared && d < C::kDv; ++d)
        store(C::kValuesAt + C::Values::offset_of_entry(e), d, static_cast<float>(small(engine)));
    }
  }

  // Scores as consumer.cuh finds them, by row and entry.
  std::vector<float> scores() const {
    std::vector<float> result(kRows * C::kTile);
    std::vector<uint8_t> exchange(C::Scores::kBytes);
    for (unsigned warp = 0; warp < kConsumerWarps; ++warp) score_warp(warp, &exchange);
    for (unsigned b = 0; b < C::kBlocks; ++b) {
      for (unsigned lane = 0; lane < 32; ++lane) {
        std::array<float, 4> x{};
        std::array<float, 4> y{};
        std::memcpy(x.data(), exchange.data() + C::Scores::offset(0, b, lane), 16);
        std::memcpy(y.data(), exchange.data() + C::Scores::offset(1, b, lane), 16);
        for (unsigned i = 0; i < 4; ++i) {
          result[(lane / 4 + i / 2 * 8) * C::kTile + C::Keys::entry_of_slot(8 * b + 2 * (lane % 4) + i % 2)] = x[i] + y[i];
        }
      }
    }
    return result;
  }

  std::vector<float> output() const {
    std::vector<float> result(kRows * C::kDv);
    for (unsigned warp = 0; warp < kConsumerWarps; ++warp) output_warp(warp, &result);
    return result;
  }

  [[nodiscard]] float key(unsigned e, unsigned d) const { return load(C::Keys::offset_of_entry(e), d); }
  [[nodiscard]] float value(unsigned e, unsigned d) const { return load(C::kValuesAt + C::Values::offset_of_entry(e), d); }
  [[nodiscard]] float query(unsigned r, unsigned d) const { return q_[r * C::kDqk + d]; }
  [[nodiscard]] float weight(unsigned r, unsigned e) const { return w_[r * C::kTile + e]; }

 private:
  void store(unsigned row, unsigned column, float value) {
    if (C::kOneByte) {
      memory_[row + column] = formats::encode_e4m3(value);
    } else {
      const uint16_t bits = formats::encode_bf16(value);
      std::memcpy(memory_.data() + row + 2 * column, &bits, 2);
    }
  }
  [[nodiscard]] float load(unsigned row, unsigned column) const {
    return C::kOneByte ? formats::decode_e4m3(memory_[row + column]) : formats::decode_bf16(element(memory_, row + 2 * column));
  }

  Fragment queries(unsigned half, unsigned step) const {
    Fragment a{};
    const unsigned depth = 16 * (half * C::kSteps + step);
    for (unsigned lane = 0; lane < 32; ++lane) {
      for (unsigned r = 0; r < 4; ++r) {
        const unsigned row = lane / 4 + r % 2 * 8;
        a[lane][r] = {query(row, depth + depth_in_step<C::kOneByte>(lane, r / 2, 0)),
                      query(row, depth + depth_in_step<C::kOneByte>(lane, r / 2, 1))};
      }
    }
    return a;
  }

  void score_warp(unsigned warp, std::vector<uint8_t>* exchange) const {
    const unsigned entry_warp = warp % kEntryWarps;
    const unsigned half = warp / kEntryWarps;
    std::array<Sums, 2> c{};
    const unsigned base = C::Keys::offset_of_slot(8 * C::kWarpBlocks * entry_warp) + half * C::kSteps * 16 * C::kElement;
    for (unsigned k = 0; k < C::kSteps; k += C::kOneByte || C::kWarpBlocks == 1 ? 2 : 1) {
      const Words b = load_matrices(memory_, false, [&](unsigned lane) {
        return base + (C::kWarpBlocks == 1 ? C::Keys::four_chunks(lane) : C::Keys::blocks_then_chunks(lane)) + 16 * C::kElement * k;
      });
      for (unsigned i = 0; i < (C::kOneByte ? 4 : 2); ++i) {
        Columns columns{};
        for (unsigned lane = 0; lane < 32; ++lane) {
          columns[lane] = C::kOneByte ? std::array{from_e4m3(b[lane][i]), from_e4m3(b[lane][i] >> 16)}
                                      : std::array{from_bf16(b[lane][2 * i]), from_bf16(b[lane][2 * i + 1])};
        }
        if (C::kOneByte) {
          multiply_add(&c[i / 2], queries(half, k + i % 2), columns);
        } else {
          multiply_add(&c[i], queries(half, C::kWarpBlocks == 1 ? k + i : k), columns);
        }
      }
    }
    for (unsigned lane = 0; lane < 32; ++lane) {
      if (C::kWarpBlocks == 1) {
        for (unsigned i = 0; i < 4; ++i) c[0][lane][i] += c[1][lane][i];
      }
      for (unsigned i = 0; i < C::kWarpBlocks; ++i) {
        std::memcpy(exchange->data() + C::Scores::offset(half, C::kWarpBlocks * entry_warp + i, lane), c[i][lane].data(), 16);
      }
    }
  }

  // Weights stand where their scores stood: register r of a left operand is block r / 2, row g + r % 2 * 8.
  Fragment weights(unsigned step) const {
    Fragment a{};
    for (unsigned lane = 0; lane < 32; ++lane) {
      for (unsigned r = 0; r < 4; ++r) {
        const unsigned slot = 8 * (2 * step + r / 2) + 2 * (lane % 4);
        const unsigned row = lane / 4 + r % 2 * 8;
        a[lane][r] = {weight(row, C::Keys::entry_of_slot(slot)), weight(row, C::Keys::entry_of_slot(slot + 1))};
      }
    }
    return a;
  }

  void output_warp(unsigned warp, std::vector<float>* result) const {
    std::vector<Sums> o(C::kProducts);
    const unsigned base = C::kValuesAt + warp * C::kProducts * 8 * C::kElement;
    for (unsigned k = 0; k < C::kBlocks / 2; ++k) {
      for (unsigned n = 0; n < C::kProducts; n += C::kOneByte ? 4 : 2) {
        const Words b = load_matrices(memory_, true, [&](unsigned lane) {
          return base + C::Values::chunks_then_blocks(lane) + C::Values::offset_of_slot(16 * k) + n * 8 * C::kElement;
        });
        for (unsigned i = 0; i < (C::kOneByte ? 4 : 2); ++i) {
          Columns columns{};
          for (unsigned lane = 0; lane < 32; ++lane) {
            const uint32_t first = b[lane][i / (C::kOneByte ? 2 : 1) * 2];
            const uint32_t second = b[lane][i / (C::kOneByte ? 2 : 1) * 2 + 1];
            const auto bytes = [&](uint32_t word) {  // byte 0 or 1 of both entries
              const unsigned odd = i % 2;
              return from_e4m3((word >> (8 * odd) & 0xffU) | (word >> (16 + 8 * odd) & 0xffU) << 8);
            };
            columns[lane] = C::kOneByte ? std::array{bytes(first), bytes(second)} : std::array{from_bf16(first), from_bf16(second)};
          }
          multiply_add(&o[n + i], weights(k), columns);
        }
      }
    }
    for (unsigned n = 0; n < C::kProducts; ++n) {
      for (unsigned lane = 0; lane < 32; ++lane) {
        for (unsigned i = 0; i < 4; ++i) {
          const unsigned column = warp * C::kProducts * 8 + output_column<C::kOneByte>(n, lane, i % 2);
          (*result)[(lane / 4 + i / 2 * 8) * C::kDv + column] = o[n][lane][i];
        }
      }
    }
  }

  std::vector<uint8_t> memory_;
  std::vector<float> q_;
  std::vector<float> w_;
};

template <class C>
class NarrowLayout : public testing::Test {};
using Configs = testing::Types<Latent, LatentE4m3, Apart>;
TYPED_TEST_SUITE(NarrowLayout, Configs);

TYPED_TEST(NarrowLayout, SlotsAreEntriesInAnotherOrder) {
  using Tile = typename TypeParam::Keys;
  std::set<unsigned> entries;
  std::set<unsigned> bytes;
  for (unsigned slot = 0; slot < TypeParam::kTile; ++slot) {
    entries.insert(Tile::entry_of_slot(slot));
    EXPECT_EQ(Tile::offset_of_slot(slot), Tile::offset_of_entry(Tile::entry_of_slot(slot)));
    EXPECT_EQ(Tile::offset_of_slot(slot) % 16, 0U);
    for (unsigned b = 0; b < Tile::kRowBytes; ++b) EXPECT_TRUE(bytes.insert(Tile::offset_of_slot(slot) + b).second);
  }
  EXPECT_EQ(entries.size(), size_t{TypeParam::kTile});
  EXPECT_EQ(*entries.rbegin(), TypeParam::kTile - 1U);
  EXPECT_LE(*bytes.rbegin(), Tile::kBytes - 1U);
  EXPECT_EQ(TypeParam::kStageBytes % 128, 0);
}

TYPED_TEST(NarrowLayout, MatrixLoadsHaveNoBankConflicts) {
  const auto check = [](auto address) {
    for (unsigned j = 0; j < 4; ++j) {
      std::set<unsigned> banks;
      for (unsigned i = 0; i < 8; ++i) banks.insert(address(8 * j + i) / 16 % 8);
      EXPECT_EQ(banks.size(), 8U) << j;
    }
  };
  check(TypeParam::Keys::four_chunks);
  check(TypeParam::Keys::blocks_then_chunks);
  check(TypeParam::Values::chunks_then_blocks);
}

// A matrix load of stored queries: lane, register r, element i stands at column 8 * (r / 2) + 2 * (lane % 4) + i of a step.
TYPED_TEST(NarrowLayout, StoredQueriesAreInTheOrderOfTheProduct) {
  if (!TypeParam::kOneByte) GTEST_SKIP() << "stored as they are";
  std::vector<unsigned> column_at(TypeParam::kDqk);  // by place in the row
  for (unsigned chunk = 0; chunk < TypeParam::kDqk / 8; ++chunk) {
    for (unsigned pair = 0; pair < 4; ++pair) {
      const unsigned at = TypeParam::Queries::one_byte_offset(chunk, pair % 2) / 2 + pair / 2 * 2;
      column_at[at] = 8 * chunk + 2 * pair;
      column_at[at + 1] = 8 * chunk + 2 * pair + 1;
    }
  }
  for (unsigned step = 0; step < TypeParam::kDqk / 16; ++step) {
    for (unsigned lane = 0; lane < 4; ++lane) {
      for (unsigned half = 0; half < 2; ++half) {
        for (unsigned i = 0; i < 2; ++i)
          EXPECT_EQ(column_at[16 * step + 8 * half + 2 * lane + i], 16 * step + depth_in_step<true>(lane, half, i));
      }
    }
  }
}

TYPED_TEST(NarrowLayout, ScoresAreTheDotProducts) {
  const Tile<TypeParam> tile;
  const std::vector<float> got = tile.scores();
  for (unsigned r = 0; r < kRows; ++r) {
    for (unsigned e = 0; e < TypeParam::kTile; ++e) {
      float want = 0.0F;  // integers: exact
      for (unsigned d = 0; d < TypeParam::kDqk; ++d) want += tile.query(r, d) * tile.key(e, d);
      ASSERT_EQ(got[r * TypeParam::kTile + e], want) << "row " << r << ", entry " << e;
    }
  }
}

TYPED_TEST(NarrowLayout, OutputIsTheWeightedSum) {
  const Tile<TypeParam> tile;
  const std::vector<float> got = tile.output();
  for (unsigned r = 0; r < kRows; ++r) {
    for (unsigned d = 0; d < TypeParam::kDv; ++d) {
      float want = 0.0F;
      for (unsigned e = 0; e < TypeParam::kTile; ++e) want += tile.weight(r, e) * tile.value(e, d);
      ASSERT_EQ(got[r * TypeParam::kDv + d], want) << "row " << r << ", column " << d;
    }
  }
}

}  // namespace
}  // namespace headwater::cuda::narrow
