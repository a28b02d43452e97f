// Every ISA of this machine against the oracle, over the sizes where tiles, panels and microkernels change, all formats, addressings and
// rules.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/cpu/support.h"

namespace headwater::cpu {
namespace {

class CpuAttention : public testing::TestWithParam<std::string> {
 protected:
  void check(const ProblemCase& c, const std::string& what) {
    OwnedProblem owned(c);
    PlanOptions options;
    options.isa = GetParam();
    options.workers = 2;
    const Status status = attend(owned.problem, options);
    ASSERT_TRUE(status.ok()) << what << ": " << status.message();
    EXPECT_EQ(compare_with_oracle(owned), "") << what;
  }
};

SourceCase source(std::vector<int32_t> lens) {
  SourceCase s;
  s.lens = std::move(lens);
  return s;
}

// Widths that fill no vector, one vector, and the largest; rows from 1 to more than one pass.
TEST_P(CpuAttention, WidthsAndHeads) {
  for (const int32_t heads : {1, 2, 3, 4, 5, 8, 9, 16, 17, 40}) {
    for (const int32_t d : {1, 3, 16, 20, 64, 80, 111, 128}) {
      ProblemCase c;
      c.heads = heads;
      c.d_qk = d;
      c.d_v = std::max(1, d - heads % 3);
      c.out_type = Type::kF32;
      c.sources = {source({53})};
      check(c, "heads " + std::to_string(heads) + " d " + std::to_string(d));
    }
  }
}

TEST_P(CpuAttention, WidePasses) {
  for (const int32_t heads : {128, 130, 300}) {
    ProblemCase c;
    c.heads = heads;
    c.d_qk = 576;
    c.d_v = 512;
    c.out_type = Type::kF32;
    c.sources = {source({50})};
    c.sources[0].shared = true;
    check(c, "heads " + std::to_string(heads));
  }
}

// Lengths around the tile of the shape (48 for 576 columns, 96 for narrower ones), and one long among many short.
TEST_P(CpuAttention, LengthsAroundTiles) {
  for (const bool shared : {true, false}) {
    for (const int32_t heads : {2, 16}) {
      ProblemCase c;
      c.heads = heads;
      c.d_qk = shared ? 576 : 128;
      c.d_v = shared ? 512 : 128;
      c.out_type = Type::kF32;
      c.q_lens = std::vector<int32_t>(17, 1);
      c.sources = {source({0, 1, 2, 47, 48, 49, 99, 120, 119, 121, 243, 7, 1500, 95, 96, 97, 195})};
      c.sources[0].shared = shared;
      check(c, "heads " + std::to_string(heads) + (shared ? " shared" : " separate"));
    }
  }
}

TEST_P(CpuAttention, Formats) {
  for (const FormatInfo& info : all_formats()) {
    for (const int32_t heads : {1, 4, 16}) {
      for (const int32_t free_width : {40, 96, 576}) {
        const int32_t width = info.fixed_width != 0                   ? info.fixed_width
                              : info.format == Format::kMxfp4RopeBf16 ? free_width + 64
                                                                      : free_width;
        if (width > kMaxWidth || (info.fixed_width != 0 && free_width != 40)) continue;
        for (const bool shared : {true, false}) {
          ProblemCase c;
          c.heads = heads;
          c.d_qk = width;
          c.d_v = shared ? width - width / 9 : width;
          c.out_type = Type::kF32;
          c.q_lens = {1, 2};
          c.sources = {source({61, 130})};
          c.sources[0].shared = shared;
          c.sources[0].k_format = info.format;
          c.sources[0].v_format = info.format;
          c.sources[0].k_scale = info.takes_scale ? 0.75F : 1.0F;
          c.sources[0].v_scale = info.takes_scale ? 1.5F : 1.0F;
          if (shared && info.takes_scale) c.sources[0].v_scale = 1.0F;
          check(c, std::string(info.name) + " heads " + std::to_string(heads) + " width " + std::to_string(width));
        }
      }
    }
  }
}

TEST_P(CpuAttention, MixedFormatsScalesPerHeadAndOddAddresses) {
  for (const Format k : {Format::kE4m3, Format::kInt8, Format::kF16, Format::kF32}) {
    for (const Format v : {Format::kMxfp4, Format::kBf16, Format::kE5m2, Format::kQ8_0}) {
      for (const int32_t heads : {4, 24}) {
        ProblemCase c;
        c.heads = heads;
        c.d_qk = 72;
        c.d_v = 64;
        c.out_type = Type::kF32;
        c.sources = {source({77})};
        c.sources[0].heads = 2;
        c.sources[0].k_format = k;
        c.sources[0].v_format = v;
        c.sources[0].k_scale = format_info(k).takes_scale ? 0.3F : 1.0F;
        c.sources[0].v_scale = format_info(v).takes_scale ? 2.5F : 1.0F;
        c.sources[0].odd_bytes = 1;
        check(c, std::string(format_info(k).name) + " " + std::string(format_info(v).name));
      }
    }
  }
}

TEST_P(CpuAttention, RulesAndAddressings) {
  for (const RuleKind rule : {RuleKind::kFull, RuleKind::kCausal, RuleKind::kWindow, RuleKind::kCompressed, RuleKind::kGathered}) {
    for (const AddressingKind addressing : {AddressingKind::kRagged, AddressingKind::kBlockTable, AddressingKind::kPageList}) {
      for (const int32_t heads : {2, 6, 12}) {
        for (const int32_t window_left : {0, 5, 127}) {
          ProblemCase c;
          c.heads = heads;
          c.d_qk = 64;
          c.d_v = 48;
          c.out_type = Type::kF32;
          c.q_lens = {1, 5, 0, 40, 3};
          c.sinks = true;
          c.sources = {source({200, 3, 9, 300, 0})};
          SourceCase& s = c.sources[0];
          s.rule = rule;
          s.addressing = addressing;
          s.window_left = window_left;
          s.page_size = window_left == 5 ? 1 : 7;
          s.slots_64 = window_left == 0;
          s.index_space = rule == RuleKind::kGathered && window_left == 127 ? IndexSpace::kPosition : IndexSpace::kSlot;
          check(c, "rule " + std::to_string(static_cast<int>(rule)) + " addressing " + std::to_string(static_cast<int>(addressing)) +
                       " heads " + std::to_string(heads) + " window " + std::to_string(window_left));
          if (rule != RuleKind::kWindow && rule != RuleKind::kGathered) break;
        }
      }
    }
  }
}

TEST_P(CpuAttention, Prefill) {
  for (const int32_t heads : {1, 3, 8}) {
    for (const int32_t d : {64, 128}) {
      ProblemCase c;
      c.heads = heads;
      c.d_qk = d;
      c.d_v = d;
      c.q_lens = {150, 301};
      c.out_type = Type::kF32;
      c.sources = {source({150, 420})};
      check(c, "heads " + std::to_string(heads) + " d " + std::to_string(d));
    }
  }
}

TEST_P(CpuAttention, SeveralSources) {
  ProblemCase c;
  c.heads = 8;
  c.d_qk = 512;
  c.d_v = 512;
  c.out_type = Type::kF32;
  c.sinks = true;
  c.q_lens = {1, 2, 4};
  SourceCase window = source({300, 20, 131});
  window.shared = true;
  window.rule = RuleKind::kWindow;
  window.window_left = 127;
  window.k_format = Format::kFp8Ds584;
  SourceCase list = window;
  list.rule = RuleKind::kGathered;
  list.topk = 100;
  SourceCase compressed = source({75, 5, 33});
  compressed.rule = RuleKind::kCompressed;
  compressed.heads = 2;
  compressed.k_format = Format::kNvfp4;
  compressed.v_format = Format::kF16;
  c.sources = {window, list, compressed};
  check(c, "window, gathered, compressed");
}

TEST_P(CpuAttention, QueryTypesTailSoftcapAndOutputs) {
  for (const Type q : {Type::kBf16, Type::kF16, Type::kF32, Type::kE4m3}) {
    for (const Type out : {Type::kBf16, Type::kF16, Type::kF32}) {
      for (const int32_t heads : {4, 16}) {
        for (const float softcap : {0.0F, 5.0F}) {
          ProblemCase c;
          c.heads = heads;
          c.d_qk = 80;
          c.d_v = 64;
          c.q_tail = 16;
          c.q_type = q;
          c.out_type = out;
          c.softcap = softcap;
          c.sm_scale = 0.6F;
          c.sinks = true;
          c.q_lens = {2};
          c.sources = {source({90})};
          check(c, "q " + std::string(type_name(q)) + " out " + std::string(type_name(out)) + " softcap " + std::to_string(softcap));
        }
      }
    }
  }
}

TEST_P(CpuAttention, LargeScores) {
  for (const int32_t heads : {2, 16}) {
    ProblemCase c;
    c.heads = heads;
    c.d_qk = 64;
    c.d_v = 64;
    c.sm_scale = 4000.0F;  // scores of 1e5
    c.q_lens = {3};
    c.sources = {source({200})};
    check(c, "heads " + std::to_string(heads));
    c.sm_scale = -0.1F;
    check(c, "negative scale, heads " + std::to_string(heads));
  }
}

INSTANTIATE_TEST_SUITE_P(Isa, CpuAttention, testing::ValuesIn(usable_isas()), [](const auto& info) { return info.param; });

}  // namespace
}  // namespace headwater::cpu
