#include "cli/terminal.h"

#include <gtest/gtest.h>

#include "cli/machine.h"
#include "cli/run.h"
#include "cli/work.h"

namespace headwater::cli {
namespace {

TEST(Printable, EscapesWhatCouldDriveATerminal) {
  EXPECT_EQ(printable("plain text, \xc3\xa4 and \xe2\x82\xac"), "plain text, \xc3\xa4 and \xe2\x82\xac");
  EXPECT_EQ(printable("a\nb\x1b[31m\x7f"), "a\\x0ab\\x1b[31m\\x7f");
  EXPECT_EQ(printable(std::string_view("\0", 1)), "\\x00");
  EXPECT_EQ(printable("\xff\xc0\x80"), "\\xff\\xc0\\x80");
  EXPECT_EQ(printable("\xc2\x9b"), "\\xc2\\x9b");           // C1 control
  EXPECT_EQ(printable("\xed\xa0\x80"), "\\xed\\xa0\\x80");  // surrogate
  EXPECT_EQ(printable("\xe2\x82"), "\\xe2\\x82");           // cut short
}

TEST(Table, AlignsNumbersRightAndTextLeft) {
  Table table({"name", "n"});
  table.add({"a", "1"});
  table.add({"longer", "100"});
  EXPECT_EQ(table.text(2), "  name      n\n  a         1\n  longer  100\n");
  EXPECT_EQ(table.markdown(), "| name | n |\n| --- | --- |\n| a | 1 |\n| longer | 100 |\n");
}

TEST(Table, CountsCodePointsNotBytes) {
  Table table({"a", "b"});
  table.add({"\xc3\xa4", "x"});
  table.add({"yy", "x"});
  EXPECT_EQ(table.text(), "a   b\n\xc3\xa4   x\nyy  x\n");
}

TEST(Human, Numbers) {
  EXPECT_EQ(human_bytes(512), "512 B");
  EXPECT_EQ(human_bytes(1536), "1.5 KiB");
  EXPECT_EQ(human_time(12.3e-6), "12.3 us");
  EXPECT_EQ(human_time(0.5), "500 ms");
}

TEST(Machine, Summary) {
  const Timing t = summarize({5, 1, 4, 2, 3});
  EXPECT_EQ(t.median, 3);
  EXPECT_EQ(t.low, 2);
  EXPECT_EQ(t.high, 4);
  EXPECT_EQ(t.runs, 5);
  EXPECT_EQ(summarize({}).runs, 0);
  EXPECT_GE(usable_cpus(), 1);
  EXPECT_GE(last_cache_bytes(), 1 << 15);
}

TEST(RunReport, AFailedCheckSaysSo) {
  RunReport r;
  r.kernel = "k";
  r.verdicts = {{"first", false, "too wide"}, {"k", true, ""}};
  r.check = CheckResult{.passed = false, .fault = "request 1, row 2, head 3: out is off", .error = 0, .allowed = 0, .worst_row = 2};
  const std::string text = report_text("f", {r});
  EXPECT_NE(text.find("FAILED: request 1, row 2, head 3"), std::string::npos) << text;
  EXPECT_NE(text.find("k (row 2 of 2, the first that accepts; first refused: too wide)"), std::string::npos) << text;
  EXPECT_FALSE(report_json("f", {r})["problems"][0]["check"]["passed"].get<bool>());
}

// Work is counted by hand here: 2 requests, window and gathered sources.
TEST(Work, CountsWhatIsVisible) {
  const int32_t qo[] = {0, 2, 3};
  const int32_t kv[] = {0, 10, 14};
  const int32_t indices[] = {0, -1, 5, 5, 2, 99};
  const float q[3 * 2 * 4] = {};
  const float k[14 * 4] = {};
  float out[3 * 2 * 4];
  Source window;
  window.k.data = k;
  window.k.format = Format::kF32;
  window.k.width = 4;
  window.shared = true;
  window.value_width = 4;
  window.addressing.num_pages = 14;
  window.addressing.kv_indptr = kv;
  window.rule = Rule::window(2);
  Source gathered = window;
  gathered.addressing.kind = AddressingKind::kPool;
  gathered.addressing.kv_indptr = nullptr;
  gathered.rule = Rule::gathered(indices, 2);
  const Source sources[] = {window, gathered};
  Problem p;
  p.q = {.data = q, .type = Type::kF32, .total = 3, .heads = 2, .width = 4};
  p.requests = 2;
  p.qo_indptr = qo;
  p.sources = sources;
  p.out = {.data = out, .type = Type::kF32};
  ResolvedProblem resolved;
  const Status status = validate(p, &resolved);
  ASSERT_TRUE(status.ok()) << status.message();
  const Work work = count_work(resolved);
  // Window: request 0 tokens at 8 and 9 see 6..8 and 7..9, 4 entries read; request 1 at 3 sees 1..3. Gathered: {0}, {5, 5}, {2}.
  EXPECT_EQ(work.entries, 4 + 3 + 4);
  EXPECT_EQ(work.kv_bytes, 11 * 16);
  EXPECT_EQ(work.flops, (3 + 3 + 3 + 4) * 2 * 2.0 * 8);
  EXPECT_EQ(work.io_bytes, 3 * 2 * 8 * 4);
}

}  // namespace
}  // namespace headwater::cli
