// Extreme integers in every field, alone and together: no overflow (UBSan watches), no crash, and what validate accepts has bounds that
// make_plan accepts. Device problems, so that no array is read with a made-up size.
#include <gtest/gtest.h>

#include <limits>
#include <random>
#include <vector>

#include "src/core/bounds.h"
#include "src/core/describe.h"
#include "src/core/resolved.h"
#include "tests/core/valid_problem.h"

namespace headwater {
namespace {

using test::ValidProblem;

struct Fields {
  std::vector<int32_t*> narrow;
  std::vector<int64_t*> wide;
};

Fields fields_of(ValidProblem& v) {
  Fields f;
  Problem& p = v.p;
  f.narrow = {&p.q.heads, &p.q.width, &p.q_tail.width};
  f.wide = {&p.q.total,
            &p.q.row_stride_bytes,
            &p.q.head_stride_bytes,
            &p.q_tail.row_stride_bytes,
            &p.q_tail.head_stride_bytes,
            &p.q_scale.row_stride,
            &p.q_scale.head_stride,
            &p.requests,
            &p.sinks_request_stride,
            &p.out.row_stride_bytes,
            &p.out.head_stride_bytes,
            &p.lse.token_stride,
            &p.lse.head_stride,
            &p.lse.request_stride};
  for (Source& s : v.sources) {
    for (KvTensor* t : {&s.k, &s.v}) {
      f.narrow.insert(f.narrow.end(), {&t->width, &t->scale.count});
      f.wide.insert(f.wide.end(), {&t->row_stride_bytes, &t->head_stride_bytes, &t->page_stride_bytes, &t->scale_row_stride_bytes,
                                   &t->scale_head_stride_bytes, &t->scale_page_stride_bytes, &t->scale_block_stride_bytes});
    }
    Addressing& a = s.addressing;
    f.narrow.insert(f.narrow.end(), {&s.value_width, &s.heads, &a.page_size, &s.rule.window_left, &s.rule.ratio, &s.rule.topk});
    f.wide.insert(f.wide.end(), {&a.num_pages, &a.max_pages, &a.block_table_stride, &a.num_indices, &s.rule.indices_stride});
  }
  return f;
}

constexpr int64_t kMin64 = std::numeric_limits<int64_t>::min();
constexpr int64_t kMax64 = std::numeric_limits<int64_t>::max();
constexpr int32_t kMin32 = std::numeric_limits<int32_t>::min();
constexpr int32_t kMax32 = std::numeric_limits<int32_t>::max();
const std::vector<int32_t> kNarrow{kMin32, kMin32 + 1, -1, 0, 1, 2, 577, 65536, 1 << 30, kMax32 - 1, kMax32};
const std::vector<int64_t> kWide{kMin64 + 1,
                                 -(int64_t{1} << 62),
                                 -(int64_t{1} << 31),
                                 -1,
                                 0,
                                 1,
                                 2,
                                 65536,
                                 int64_t{1} << 31,
                                 int64_t{1} << 32,
                                 int64_t{1} << 57,
                                 int64_t{1} << 58,
                                 int64_t{1} << 61,
                                 int64_t{1} << 62,
                                 kMax64 - 1,
                                 kMax64};

// Returns whether it was accepted.
bool check(const ValidProblem& v) {
  ResolvedProblem resolved;
  const Status status = validate(v.p, &resolved);
  const Result<Bounds> bounds = Bounds::of(v.p);
  EXPECT_EQ(bounds.ok(), status.ok()) << bounds.status().message();
  if (!status.ok()) {
    EXPECT_NE(status.message().find(" = "), std::string::npos) << status.message();
    EXPECT_NE(status.message().find(": "), std::string::npos) << status.message();
    return false;
  }
  const Status usable = validate_bounds(*bounds, {});
  EXPECT_TRUE(usable.ok()) << usable.message();
  EXPECT_FALSE(describe(v.p, resolved).empty());
  return true;
}

TEST(AbsurdValues, AloneInEveryField) {
  ValidProblem probe;
  const Fields count = fields_of(probe);
  int64_t refused = 0;
  for (size_t i = 0; i < count.narrow.size(); ++i) {
    for (const int32_t value : kNarrow) {
      ValidProblem v;
      v.p.device.kind = DeviceKind::kCuda;
      *fields_of(v).narrow[i] = value;
      refused += check(v) ? 0 : 1;
    }
  }
  for (size_t i = 0; i < count.wide.size(); ++i) {
    for (const int64_t value : kWide) {
      ValidProblem v;
      v.p.device.kind = DeviceKind::kCuda;
      *fields_of(v).wide[i] = value;
      refused += check(v) ? 0 : 1;
    }
  }
  EXPECT_GT(refused, 400);
}

TEST(AbsurdValues, TogetherInAFew) {
  std::mt19937 random(11);
  int64_t accepted = 0;
  for (int round = 0; round < 3000; ++round) {
    ValidProblem v;
    v.p.device.kind = DeviceKind::kCuda;
    const Fields f = fields_of(v);
    for (int i = 0; i < 2 + round % 3; ++i) {
      if (random() % 3 == 0) {
        *f.narrow[random() % f.narrow.size()] = kNarrow[random() % kNarrow.size()];
      } else {
        *f.wide[random() % f.wide.size()] = kWide[random() % kWide.size()];
      }
    }
    accepted += check(v) ? 1 : 0;
  }
  EXPECT_GT(accepted, 20);  // some fields are not read for some formats and storages: the rest is refused
}

}  // namespace
}  // namespace headwater
