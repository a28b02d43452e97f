// The contract's list of rules that other libraries got wrong, each through the public API; ids such as A16 are those of the shared list
// of reported faults.
#include <sys/mman.h>

#include <cmath>
#include <cstring>
#include <set>
#include <thread>

#include "cli/check/runner.h"
#include "cli/check/tolerance.h"
#include "tests/conformance/simple.h"

namespace headwater::conformance {
namespace {

// All KV formats with a width that each takes.
struct FormatWidth {
  Format format;
  int32_t width;
};
std::vector<FormatWidth> every_format() {
  std::vector<FormatWidth> list;
  for (const FormatInfo& info : all_formats()) list.push_back({info.format, info.fixed_width > 0 ? info.fixed_width : 96});
  return list;
}

// ---- rule 1 ------------------------------------------------------------------------------------------------------------------

TEST(Rule1, A03_A04_A29_A30_RequestsWithoutKeysAreExactlyZero) {
  for (const int32_t page_size : {0, 1, 16}) {
    for (const bool invariant : {false, true}) {
      Simple s;
      s.q_lens = {1, 1, 0, 3};
      s.sinks = {0.5F};
      SimpleSource kv;
      kv.kv_lens = {7, 0, 0, 0};
      kv.page_size = page_size;
      s.add(kv);
      PlanOptions options;
      options.batch_invariant = invariant;
      s.expect_oracle("page_size " + std::to_string(page_size), options);
      for (int64_t row = 1; row < 5; ++row) {
        EXPECT_EQ(s.lse(row, 0), -kInfF);
        for (int32_t c = 0; c < s.d_v; ++c) EXPECT_EQ(s.out(row, 0, c), 0.0F);
      }
    }
  }
}

TEST(Rule1, A29_TablesOfNoWidth) {
  Simple s;
  s.q_lens = {1, 1, 1};
  SimpleSource kv;
  kv.kv_lens = {0, 0, 0};
  kv.page_size = 4;
  s.add(kv);
  s.expect_oracle("no pages at all");
}

TEST(Rule1, A19_RowsBeforeTheFirstKey) {
  for (const int32_t page_size : {0, 1, 4}) {
    for (const int32_t workers : {1, 3}) {
      Simple s;
      s.q_lens = {5, 3};
      SimpleSource kv;
      kv.kv_lens = {2, 1};
      kv.page_size = page_size;
      kv.rule = Rule::causal();
      s.add(kv);
      PlanOptions options;
      options.workers = workers;
      s.expect_oracle("kv_len below q_len", options);
      for (const int64_t row : {0, 1, 2, 5, 6}) EXPECT_EQ(s.lse(row, 0), -kInfF);
    }
  }
}

TEST(Rule1, PrecedenceOnEveryIsa) {
  struct Line {
    const char* what;
    float q, k0, k1, v0, sink;  // k1 = 0, v1 = 2
    double out, lse;
  };
  const double ln2 = std::log(2.0);
  const std::vector<Line> lines = {
      {"-inf score hides its V, NaN sink: not empty, so NaN", 1, -kInfF, 0, kInfF, kNanF, kNanF, 0},
      {"-inf score hides its V", 1, -kInfF, 0, kInfF, -kInfF, 2, 0},
      {"both scores -inf: empty whatever the sink", -1, kInfF, kInfF, kInfF, kNanF, 0, -kInfF},
      {"NaN score before +inf sink", 1, kNanF, 0, 1, kInfF, kNanF, kNanF},
      {"+inf score before +inf sink", 1, kInfF, 0, 1, kInfF, kNanF, kNanF},
      {"NaN sink spares the lse", 1, 0, 0, 1, kNanF, kNanF, ln2},
      {"+inf sink gives 0 whatever V", 1, 0, 0, kNanF, kInfF, 0, ln2},
      {"V last", 1, 0, 0, kNanF, 0, kNanF, ln2},
  };
  for (const Line& line : lines) {
    for (const int32_t heads : {1, 6}) {        // few rows and panels
      for (const bool apart : {false, true}) {  // one source, or one entry in each of two
        Simple s;
        s.heads = heads;
        s.d_qk = 1;
        s.d_v = 3;
        s.sm_scale = 1.0F;
        s.sinks.assign(static_cast<size_t>(heads), line.sink);
        s.q = [&](int64_t, int32_t, int32_t) { return line.q; };
        SimpleSource kv;
        kv.kv_lens = {apart ? 1 : 2};
        kv.k = [&](int64_t, int64_t j, int32_t, int32_t) { return j == 0 ? line.k0 : line.k1; };
        kv.v = [&](int64_t, int64_t j, int32_t, int32_t) { return j == 0 ? line.v0 : 2.0F; };
        s.add(kv);
        if (apart) {
          kv.k = constant(line.k1);
          kv.v = constant(2.0F);
          s.add(kv);
        }
        s.expect_oracle(line.what);
        const auto same = [](float got, double want) {
          return std::isnan(want) ? std::isnan(got) : std::isinf(want) ? got == want : std::fabs(got - want) < 1e-5;
        };
        EXPECT_TRUE(same(s.out(0, heads - 1, 2), line.out)) << line.what << ": " << s.out(0, heads - 1, 2);
        EXPECT_TRUE(same(s.lse(0, heads - 1), line.lse)) << line.what << ": " << s.lse(0, heads - 1);
      }
    }
  }
}

TEST(Rule1, A01_EmptyStatesMergeToNothingAndARealOneComesBackBitForBit) {
  constexpr int32_t kWidth = 64;
  std::vector<float> empty(kWidth, kNanF);  // its out is not read
  std::vector<float> real(kWidth);
  for (int32_t i = 0; i < kWidth; ++i) real[static_cast<size_t>(i)] = std::sin(static_cast<float>(i));
  float nothing = -kInfF;
  float something = 1.25F;
  std::vector<float> result(kWidth, 5.0F);
  float result_lse = 0.0F;
  const StateShape shape{.tokens = 1, .heads = 1, .width = kWidth, .indptr = nullptr, .requests = 0};
  const auto state = [](std::vector<float>& out, float* lse) {
    State s;
    s.out = out.data();
    s.lse.data = lse;
    return s;
  };
  ASSERT_TRUE(merge_states(shape, state(empty, &nothing), state(empty, &nothing), state(result, &result_lse)).ok());
  EXPECT_EQ(result_lse, -kInfF);
  EXPECT_EQ(result, std::vector<float>(kWidth, 0.0F));
  for (const bool swapped : {false, true}) {
    const State a = state(empty, &nothing);
    const State b = state(real, &something);
    ASSERT_TRUE(merge_states(shape, swapped ? b : a, swapped ? a : b, state(result, &result_lse)).ok());
    EXPECT_EQ(result_lse, something);
    EXPECT_EQ(result, real);
  }
  float infinite = kInfF;  // A04: another library's mark of an empty row fails loudly
  ASSERT_TRUE(merge_states(shape, state(real, &infinite), state(real, &something), state(result, &result_lse)).ok());
  EXPECT_TRUE(std::isnan(result_lse));
  EXPECT_TRUE(std::isnan(result[0]));
}

// ---- rule 2 ------------------------------------------------------------------------------------------------------------------

TEST(Rule2, A06_A07_SinkOnEveryFormatAndPhase) {
  for (const FormatWidth& f : every_format()) {
    for (const int32_t q_len : {1, 9}) {
      Simple s;
      s.d_qk = f.width;
      s.d_v = std::min(f.width, 64);
      s.heads = 3;
      s.q_lens = {q_len};
      s.q = [](int64_t, int32_t, int32_t) { return 0.0F; };
      s.sinks = {2.0F, 2.0F, 2.0F};
      SimpleSource kv;
      kv.kv_lens = {4};
      kv.page_size = 2;
      kv.k_format = f.format;
      kv.shared = true;
      kv.k = constant(1.0F);
      s.add(kv);
      const std::string name(format_info(f.format).name);
      s.expect_oracle(name);
      for (int64_t row = 0; row < q_len; ++row) EXPECT_NEAR(s.out(row, 1, 0), 4.0 / (4.0 + std::exp(2.0)), 0.03) << name;  // 1.0 quantised
    }
  }
}

TEST(Rule2, A08_PackedRowsUseTheirOwnHeadsSink) {
  for (const int32_t workers : {1, 4}) {
    Simple s;
    s.heads = 8;
    s.q_lens = {3, 2};
    s.sinks = {0, 1, 2, 3, 4, 5, 6, 7};
    s.q = [](int64_t, int32_t, int32_t) { return 0.0F; };
    SimpleSource kv;
    kv.heads = 2;
    kv.kv_lens = {4, 300};
    kv.v = constant(1.0F);
    s.add(kv);
    PlanOptions options;
    options.workers = workers;
    s.expect_oracle("distinct sinks", options);
    for (int32_t h = 0; h < 8; ++h) {
      EXPECT_NEAR(s.out(2, h, 0), 4.0 / (4.0 + std::exp(h)), 1e-5);
      EXPECT_NEAR(s.out(4, h, 0), 300.0 / (300.0 + std::exp(h)), 1e-5);
      EXPECT_NEAR(s.lse(4, h), std::log(300.0), 1e-4);  // the sink left out
    }
  }
}

TEST(Rule2, A09_SinkExtremes) {
  Simple s;
  s.heads = 5;
  s.sinks = {-30, 0, 30, -kInfF, kInfF};
  SimpleSource kv;
  kv.kv_lens = {4};
  s.add(kv);
  s.expect_oracle("sinks of every size");
  EXPECT_EQ(s.out(0, 4, 0), 0.0F);
}

TEST(Rule2, FinalizeAfterMergeIsTheSinkOfOneCall) {
  Simple with_sink;
  Simple without;
  for (Simple* s : {&with_sink, &without}) {
    s->heads = 4;
    s->q_lens = {2, 1};
    if (s == &with_sink) s->sinks = {-1, 0.5F, kInfF, 2};
    SimpleSource kv;
    kv.kv_lens = {20, 33};
    s->add(kv);
    s->attend_ok();
  }
  State state;
  state.out = without.problem().out.data;
  state.lse = without.problem().lse;
  const StateShape shape{.tokens = 3, .heads = 4, .width = 8, .indptr = nullptr, .requests = 0};
  ASSERT_TRUE(finalize(shape, state, with_sink.problem().sinks, state).ok());
  const Judgement verdict = judge(without.problem(), run_reference(with_sink.problem()));
  EXPECT_EQ(verdict.fault, "");
}

// ---- rules 3 and 4 -------------------------------------------------------------------------------------------------------------

TEST(Rule3, B27_ScoresOfMinus1e5AreLegal) {
  for (const int32_t kv_len : {2, 300}) {
    Simple s;
    s.d_qk = 1;
    s.heads = 6;
    s.q_lens = {5};
    s.sm_scale = 1.0F;
    s.q = [](int64_t, int32_t, int32_t) { return 1.0F; };
    SimpleSource kv;
    kv.kv_lens = {kv_len};
    kv.rule = Rule::causal();
    kv.k = constant(-1e5F);
    kv.v = [](int64_t, int64_t j, int32_t, int32_t) { return static_cast<float>(j % 2); };
    s.add(kv);
    s.expect_oracle("all scores -1e5");
    EXPECT_NEAR(s.out(4, 0, 0), 0.5, 1e-3);
    EXPECT_NEAR(s.lse(4, 5), -1e5 + std::log(kv_len), 0.1);
  }
}

TEST(Rule4, A16_NanInPageTailsAndUnusedPages) {
  for (const FormatWidth& f : every_format()) {
    Simple s;
    s.d_qk = f.width;
    s.d_v = std::min(f.width, 96);
    s.heads = 2;
    s.q_lens = {1, 4};
    SimpleSource kv;
    kv.kv_lens = {13, 6};  // P = 4 and 13 entries, as reported; memory of nobody is NaN
    kv.page_size = 4;
    kv.k_format = f.format;
    kv.shared = true;
    kv.rule = Rule::causal();
    s.add(kv);
    s.expect_oracle(std::string(format_info(f.format).name));
    for (int32_t c = 0; c < s.d_v; ++c) EXPECT_TRUE(std::isfinite(s.out(0, 1, c)));
  }
}

TEST(Rule4, A17_EntriesBehindTopkLensAndOutOfRange) {
  Simple s;
  s.q_lens = {1, 1};
  const std::vector<int32_t> indices = {0, 1, 2, -1, 7, 2147480000, 0, 1, 2, -1, 3, 1};
  const std::vector<int32_t> topk_lens = {2, 5};
  SimpleSource kv;
  kv.kv_lens = {4, 0};
  kv.rule = Rule::gathered(indices.data(), 6, topk_lens.data());
  kv.k = [](int64_t, int64_t j, int32_t, int32_t c) { return j == 2 ? kNanF : std::sin(static_cast<float>(j * 8 + c)); };
  kv.v = kv.k;
  s.add(kv);
  s.expect_oracle("key 2 is NaN");
  EXPECT_TRUE(std::isfinite(s.out(0, 0, 0)));  // behind its topk_len
  EXPECT_TRUE(std::isnan(s.out(1, 0, 0)));     // listed: the NaN is real
}

TEST(Rule4, NanOfAKeyReachesOnlyTheTokensThatSeeIt) {
  for (const bool in_v : {false, true}) {
    Simple s;
    s.heads = 4;
    s.q_lens = {9};
    SimpleSource kv;
    kv.heads = 2;
    kv.kv_lens = {40};
    kv.rule = Rule::causal();
    const Values spoiled = [](int64_t, int64_t j, int32_t h, int32_t c) {
      return j == 35 && h == 1 ? kNanF : std::cos(static_cast<float>(j * 3 + c));
    };
    (in_v ? kv.v : kv.k) = spoiled;
    s.add(kv);
    s.expect_oracle("key 35 of KV head 1 is NaN");
    EXPECT_TRUE(std::isfinite(s.out(3, 3, 0)));  // token 3 sees keys up to 34
    EXPECT_FALSE(std::isfinite(s.out(4, 3, 0)));
    EXPECT_TRUE(std::isfinite(s.out(4, 1, 0)));  // the other KV head
  }
}

// ---- rule 5 --------------------------------------------------------------------------------------------------------------------

TEST(Rule5, A41_A42_BitsOfARequestDoNotDependOnItsNeighbours) {
  std::vector<float> alone;
  for (const int64_t neighbours : {0, 1, 7, 31, 32}) {
    Simple s(3);
    s.heads = 4;
    s.q_lens.assign(static_cast<size_t>(neighbours) + 1, 1);
    SimpleSource kv;
    kv.heads = 2;
    kv.kv_lens.assign(static_cast<size_t>(neighbours) + 1, 3);
    kv.kv_lens[0] = 777;
    for (size_t b = 1; b < kv.kv_lens.size(); b += 3) kv.kv_lens[b] = 400;
    const auto wave = [](int64_t b, int64_t j, int32_t h, int32_t c) { return std::sin(static_cast<float>(b * 7 + j * 31 + h * 3 + c)); };
    kv.k = wave;
    kv.v = wave;
    s.q = [](int64_t row, int32_t h, int32_t c) { return std::cos(static_cast<float>(row * 5 + h * 2 + c)); };
    s.add(kv);
    for (const int32_t workers : {1, 2, 5}) {
      PlanOptions options;
      options.batch_invariant = true;
      options.workers = workers;
      s.attend_ok(options);
      std::vector<float> bits;
      for (int32_t h = 0; h < 4; ++h) {
        bits.push_back(s.lse(0, h));
        for (int32_t c = 0; c < s.d_v; ++c) bits.push_back(s.out(0, h, c));
      }
      if (alone.empty()) alone = bits;
      EXPECT_EQ(bits, alone) << neighbours << " neighbours, " << workers << " workers";
    }
  }
}

TEST(Rule5, SameBitsOnEveryRun) {
  Simple s;
  s.heads = 6;
  s.q_lens = {1, 7, 2};
  SimpleSource kv;
  kv.heads = 3;
  kv.kv_lens = {500, 90, 1000};
  s.add(kv);
  s.attend_ok();
  const std::vector<std::byte> first = s.out_bytes();
  const std::vector<float> first_lse = s.lse_values();
  for (int i = 0; i < 20; ++i) {
    s.attend_ok();
    ASSERT_EQ(s.out_bytes(), first);
    ASSERT_EQ(s.lse_values(), first_lse);
  }
}

// ---- rule 6 --------------------------------------------------------------------------------------------------------------------

// A problem with every length that a schedule keeps, and buffers for it.
struct Scheduled {
  Simple s;
  std::vector<int32_t> topk_lens = {2, 2, 2};
  std::vector<int32_t> indices = {0, 1, 2, 0, 1, 2, 3, 4, 5};
  Prepared prepared{make_plan({})};

  Scheduled() {
    s.q_lens = {2, 1};
    s.context_lens = {20, 30};
    SimpleSource kv;
    kv.kv_lens = {20, 30};
    kv.rule = Rule::causal();
    kv.first_position = {0, 0};
    kv.position_stride = {1, 1};
    kv.page_size = 4;
    s.add(kv);
    SimpleSource pool;
    pool.kv_lens = {6, 0};
    pool.rule = Rule::gathered(indices.data(), 3, topk_lens.data());
    s.add(pool);
    Result<Bounds> bounds = Bounds::of(s.problem());
    EXPECT_TRUE(bounds.ok());
    bounds->sources[0].max_len = 100;
    bounds->sources[0].max_total_len = 0;
    bounds->max_total_q = 8;
    bounds->max_q_len = 8;
    prepared = prepare(*bounds);
    EXPECT_TRUE(prepared.plan.ok()) << prepared.plan.status().message();
    EXPECT_TRUE(prepared.plan->schedule(Lengths::of(s.problem()), prepared.schedule_buf()).ok());
  }
  Status run() { return prepared.plan->run(s.problem(), prepared.schedule_buf(), prepared.scratch_buf()); }
};

TEST(Rule6, A43_StaleScheduleIsRefusedAndOutputsStay) {
  struct Change {
    const char* what;
    std::function<void(Scheduled*)> make;
  };
  const std::vector<Change> changes = {
      {"kv_len", [](Scheduled* x) { const_cast<int32_t*>(x->s.source(0).addressing.seq_lens)[1] = 29; }},
      {"context_len", [](Scheduled* x) { x->s.context_lens[0] = 19; }},
      {"first_position", [](Scheduled* x) { const_cast<int32_t*>(x->s.source(0).first_position)[0] = 1; }},
      {"position_stride", [](Scheduled* x) { const_cast<int32_t*>(x->s.source(0).position_stride)[1] = 2; }},
      {"topk_len", [](Scheduled* x) { x->topk_lens[2] = 3; }},
      {"qo_indptr", [](Scheduled* x) { const_cast<int32_t*>(x->s.problem().qo_indptr)[1] = 1; }},
  };
  for (const Change& change : changes) {
    Scheduled x;
    ASSERT_TRUE(x.run().ok());
    change.make(&x);
    x.s.clear_outputs();
    const std::vector<std::byte> before = x.s.out_bytes();
    const Status status = x.run();
    EXPECT_EQ(status.code(), StatusCode::kInvalid) << change.what << ": " << status.message();
    EXPECT_FALSE(status.message().empty());
    EXPECT_EQ(x.s.out_bytes(), before) << change.what << ": outputs were touched";
    // The same lengths scheduled again are fine.
    ASSERT_TRUE(x.prepared.plan->schedule(Lengths::of(x.s.problem()), x.prepared.schedule_buf()).ok()) << change.what;
    EXPECT_TRUE(x.run().ok()) << change.what;
    EXPECT_EQ(judge(x.s.problem(), run_reference(x.s.problem())).fault, "") << change.what;
  }
}

TEST(Rule6, A23_RunRefusesWhatThePlanDoesNotCover) {
  struct Change {
    const char* what;
    std::function<void(Problem*, Source*)> make;
  };
  const std::vector<Change> changes = {
      {"window", [](Problem*, Source* s) { s->rule = Rule::window(4); }},
      {"full", [](Problem*, Source* s) { s->rule = Rule::full(); }},
      {"format", [](Problem*, Source* s) { s->k.format = Format::kBf16; }},
      {"softcap", [](Problem* p, Source*) { p->logits_soft_cap = 5.0F; }},
      {"page_size", [](Problem*, Source* s) { s->addressing.page_size = 2; }},
      {"out type", [](Problem* p, Source*) { p->out.type = Type::kBf16; }},
      {"sources", [](Problem* p, Source*) { p->sources = p->sources.subspan(0, 1); }},
  };
  for (const Change& change : changes) {
    Scheduled x;
    x.s.clear_outputs();
    const std::vector<std::byte> before = x.s.out_bytes();
    change.make(&x.s.problem(), &x.s.source(0));
    EXPECT_FALSE(x.run().ok()) << change.what;
    EXPECT_EQ(x.s.out_bytes(), before) << change.what << ": outputs were touched";
  }
}

TEST(Rule6, B16_B17_OnePlanServesManyThreadsWithBuffersOfTheirOwn) {
  Simple model;
  model.heads = 4;
  model.q_lens = {1, 3};
  SimpleSource kv;
  kv.heads = 2;
  kv.kv_lens = {300, 120};
  model.add(kv);
  const Result<Bounds> bounds = Bounds::of(model.problem());
  ASSERT_TRUE(bounds.ok());
  PlanOptions options;
  options.workers = 3;
  const Prepared shared = prepare(*bounds, options);
  ASSERT_TRUE(shared.plan.ok());
  const Reference reference = run_reference(model.problem());
  std::vector<std::string> faults(4);
  std::vector<std::thread> threads;
  for (size_t i = 0; i < faults.size(); ++i) {
    threads.emplace_back([&, i] {
      Problem mine = model.problem();
      const auto rows = static_cast<size_t>(model.rows()) * 4;
      std::vector<float> out(rows * 8);
      std::vector<float> lse(rows);
      mine.out.data = out.data();
      mine.lse.data = lse.data();
      const Prepared own = prepare(*bounds, options);  // for its buffers only
      for (int round = 0; round < 25 && faults[i].empty(); ++round) {
        std::fill(out.begin(), out.end(), kNanF);
        if (!shared.plan->schedule(Lengths::of(mine), own.schedule_buf()).ok()) faults[i] = "schedule";
        if (!shared.plan->run(mine, own.schedule_buf(), own.scratch_buf()).ok()) faults[i] = "run";
        if (faults[i].empty()) faults[i] = judge(mine, reference).fault;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::string& fault : faults) EXPECT_EQ(fault, "");
}

// ---- rule 7 --------------------------------------------------------------------------------------------------------------------

TEST(Rule7, SixtyFiveThousandRequests) {
  constexpr int64_t kRequests = 65536;
  Simple s;
  s.d_qk = 4;
  s.d_v = 4;
  s.q_lens.assign(kRequests, 1);
  SimpleSource kv;
  kv.kv_lens.assign(kRequests, 1);
  for (size_t b = 0; b < kv.kv_lens.size(); b += 97) kv.kv_lens[b] = static_cast<int32_t>(b % 5);
  s.add(kv);
  s.expect_oracle("65,536 requests");
}

TEST(Rule7, SixtyFiveThousandHeads) {
  Simple s;
  s.heads = 65536;
  s.d_qk = 2;
  s.d_v = 2;
  SimpleSource kv;
  kv.heads = 32768;
  kv.kv_lens = {3};
  s.add(kv);
  s.expect_oracle("65,536 heads");
}

TEST(Rule7, A32_A34_OnlyTheLastPageOfACacheAbove2To31Elements) {
  constexpr int64_t kPage = 16;
  constexpr int32_t kWidth = 576;
  constexpr int64_t kPages = (int64_t{1} << 31) / (kPage * kWidth) + 1000;
  const auto bytes = static_cast<size_t>(kPages * kPage * kWidth * 2);
  void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) GTEST_SKIP() << "no " << bytes << " bytes of address space here";
  auto* const cache = static_cast<uint16_t*>(memory);
  std::mt19937 engine(4);
  std::vector<int32_t> table;
  for (const int64_t page : {kPages - 1, kPages - 2}) {
    table.push_back(static_cast<int32_t>(page));
    for (int64_t i = 0; i < kPage * kWidth; ++i)
      cache[page * kPage * kWidth + i] = static_cast<uint16_t>(0x3f00 + engine() % 256 + (engine() % 2) * 0x8000);
  }
  Simple s;
  s.heads = 4;
  s.d_qk = kWidth;
  s.d_v = 512;
  SimpleSource small;  // replaced by the large cache below
  small.kv_lens = {1};
  small.k_format = Format::kBf16;
  small.shared = true;
  s.add(small);
  const std::vector<int32_t> seq_lens = {27};
  Source& source = s.source();
  source.k.data = cache;
  source.addressing = {};
  source.addressing.kind = AddressingKind::kBlockTable;
  source.addressing.page_size = kPage;
  source.addressing.num_pages = kPages;
  source.addressing.block_table = table.data();
  source.addressing.max_pages = 2;
  source.addressing.seq_lens = seq_lens.data();
  s.expect_oracle("block table");
  EXPECT_NE(s.out(0, 0, 0), 0.0F);
  // The same slots by gathered lists of 64-bit indices.
  std::vector<int64_t> indices;
  for (int64_t j = 0; j < 27; ++j) indices.push_back((kPages - 1 - j / kPage) * kPage + j % kPage);
  const float by_table = s.lse(0, 3);
  source.addressing.kind = AddressingKind::kPool;
  source.addressing.block_table = nullptr;
  source.addressing.seq_lens = nullptr;
  source.rule.kind = RuleKind::kGathered;
  source.rule.indices = indices.data();
  source.rule.index_type = Type::kI64;
  source.rule.topk = 27;
  s.expect_oracle("gathered");
  EXPECT_NEAR(s.lse(0, 3), by_table, 1e-4);
  munmap(memory, bytes);
}

// ---- rules 8, 9, 10 --------------------------------------------------------------------------------------------------------------

TEST(Rule8, A35_A40_InterleavedAndHeadFirstCachesByTheirStrides) {
  constexpr int32_t kHeads = 16;
  constexpr int32_t kPage = 16;  // Hk = P: sizes alone could not tell the layouts apart
  constexpr int32_t kD = 8;
  constexpr int32_t kPages = 3;
  std::mt19937 engine(9);
  std::normal_distribution<float> normal;
  std::vector<float> cache(static_cast<size_t>(kPages) * 2 * kPage * kHeads * kD);  // (pages, 2, P, Hk, D) or (pages, 2, Hk, P, D)
  for (float& x : cache) x = normal(engine);
  std::set<float> different;
  for (const bool head_first : {false, true}) {
    Simple s;
    s.heads = kHeads;
    s.d_qk = kD;
    s.d_v = kD;
    SimpleSource from;
    from.heads = kHeads;
    from.page_size = kPage;
    from.kv_lens = {40};
    s.add(from);
    Source& source = s.source();
    for (KvTensor* t : {&source.k, &source.v}) {
      t->data = cache.data() + (t == &source.v ? kPage * kHeads * kD : 0);
      t->page_stride_bytes = 2 * kPage * kHeads * kD * 4;
      t->row_stride_bytes = (head_first ? kD : kHeads * kD) * 4;
      t->head_stride_bytes = (head_first ? kPage * kD : kD) * 4;
    }
    s.expect_oracle(head_first ? "head first" : "token first");
    different.insert(s.lse(0, 5));
  }
  EXPECT_EQ(different.size(), 2U);
}

TEST(Rule9, B11_RaggedRequestsDoNotWriteOverNeighbours) {
  Simple s;
  s.heads = 2;
  s.q_lens = {64, 1, 65, 127, 3};
  SimpleSource kv;
  kv.kv_lens = {64, 129, 65, 200, 1};
  kv.rule = Rule::causal();
  s.add(kv);
  s.expect_oracle("lengths that no tile divides");
}

TEST(Rule10, A37_A38_ScalesOnEveryFormatThatTakesThem) {
  for (const FormatInfo& info : all_formats()) {
    for (const int32_t q_len : {1, 6}) {
      const std::vector<float> k_scale = {0.25F, 0.5F};
      const std::vector<float> v_scale = {0.5F, 0.125F};
      Simple s;
      s.heads = 4;
      s.d_qk = 64;
      s.d_v = 32;
      s.q_lens = {q_len};
      SimpleSource kv;
      kv.heads = 2;
      kv.kv_lens = {70};
      kv.page_size = 16;
      if (!info.takes_scale) continue;
      kv.k_format = info.format;
      kv.v_format = info.format;
      kv.k_scale = Scale::array(k_scale.data(), 2);
      kv.v_scale = Scale::array(v_scale.data(), 2);
      s.add(kv);
      s.expect_oracle(std::string(info.name));
      s.attend_ok();  // on the default instruction set: bits of another one may differ
      // Halving the v_scale halves the output and leaves the lse: once each, on every path.
      const float out = s.out(q_len - 1, 3, 7);
      const float lse = s.lse(q_len - 1, 3);
      const std::vector<float> half = {0.25F, 0.0625F};
      s.source().v.scale = Scale::array(half.data(), 2);
      s.attend_ok();
      EXPECT_NEAR(s.out(q_len - 1, 3, 7), out / 2, 1e-5F + 1e-5F * std::fabs(out)) << info.name;
      EXPECT_EQ(s.lse(q_len - 1, 3), lse) << info.name;
    }
  }
  Simple s;  // A38: a scale on a float format is invalid, by name
  SimpleSource kv;
  kv.kv_lens = {3};
  s.add(kv);
  s.source().k.scale = Scale::constant(0.5F);
  const Status status = attend(s.problem());
  EXPECT_EQ(status.code(), StatusCode::kInvalid);
  EXPECT_NE(status.message().find("scale"), std::string::npos) << status.message();
}

}  // namespace
}  // namespace headwater::conformance
