#include "src/io/problem_file.h"

#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <sstream>

#include "src/io/problem_names.h"
#include "tests/io/problem_builder.h"
#include "tests/io/temp_file.h"

namespace headwater::io {
namespace {

TEST(ProblemFile, RaggedDefaultsToOneRequest) {
  const auto p = ragged().tensor("sinks", "F32", {4}).meta("note", "hello").load();
  ASSERT_TRUE(p.ok()) << p.status().message();
  const Problem& problem = p->problem;
  EXPECT_EQ(problem.requests, 1);
  EXPECT_EQ(problem.qo_indptr[1], 3);
  EXPECT_EQ(problem.q.heads, 4);
  EXPECT_EQ(problem.sm_scale, 0.125F);
  ASSERT_EQ(problem.sources.size(), 1U);
  const Source& s = problem.sources[0];
  EXPECT_EQ(s.heads, 2);
  EXPECT_EQ(s.v.width, 6);
  EXPECT_EQ(s.k.format, Format::kBf16);
  EXPECT_EQ(s.addressing.kind, AddressingKind::kRagged);
  EXPECT_EQ(s.addressing.kv_indptr[1], 10);
  EXPECT_EQ(problem.out.type, Type::kBf16);
  EXPECT_NE(problem.out.data, nullptr);
  EXPECT_EQ(p->notes.at("note"), "hello");
}

TEST(ProblemFile, PointersSurviveAMove) {
  auto p = ragged().load();
  ASSERT_TRUE(p.ok());
  const Source* const sources = p->problem.sources.data();
  const OwnedProblem moved = std::move(p).value();
  EXPECT_EQ(moved.problem.sources.data(), sources);
  EXPECT_EQ(moved.sources.data(), sources);
}

TEST(ProblemFile, PagedKinds) {
  const auto table = paged().load();
  ASSERT_TRUE(table.ok()) << table.status().message();
  EXPECT_EQ(table->sources[0].addressing.kind, AddressingKind::kBlockTable);
  EXPECT_EQ(table->sources[0].addressing.page_size, 4);
  EXPECT_EQ(table->sources[0].addressing.num_pages, 5);
  EXPECT_EQ(table->sources[0].addressing.max_pages, 3);
  const auto list = page_list().load();
  ASSERT_TRUE(list.ok()) << list.status().message();
  EXPECT_EQ(list->sources[0].addressing.kind, AddressingKind::kPageList);
  EXPECT_EQ(list->sources[0].addressing.num_indices, 5);
  const auto rows = paged().tensor("kv.0.k", "BF16", {20, 2, 8}).tensor("kv.0.v", "BF16", {20, 2, 6}).meta("kv.0.page_size", "4").load();
  ASSERT_TRUE(rows.ok()) << rows.status().message();
  EXPECT_EQ(rows->sources[0].addressing.num_pages, 5);
  EXPECT_EQ(rows->sources[0].k.page_stride_bytes, 4 * 2 * 8 * 2);
}

TEST(ProblemFile, SharedRawAndGathered) {
  const auto p = gathered_584().load();
  ASSERT_TRUE(p.ok()) << p.status().message();
  const Source& s = p->sources[0];
  EXPECT_TRUE(s.shared);
  EXPECT_EQ(s.value_width, 512);
  EXPECT_EQ(s.k.page_stride_bytes, 1728);
  EXPECT_EQ(s.addressing.kind, AddressingKind::kPool);
  EXPECT_EQ(s.rule.topk, 2);
  const auto m = mxfp4().load();
  ASSERT_TRUE(m.ok()) << m.status().message();
  EXPECT_EQ(m->problem.d_qk(), 96);
  EXPECT_EQ(m->sources[0].k.width, 96);
  EXPECT_EQ(m->sources[0].k.scale_head_stride_bytes, 4);  // padded: 3 blocks in use
  EXPECT_EQ(m->problem.sm_scale, 0.0F);
}

TEST(ProblemFile, CarriersForWritersWithoutNarrowTypes) {
  const auto p = ragged()
                     .tensor("q", "U8", {3, 4, 8})
                     .meta("q_type", "e4m3")
                     .tensor("q_scale", "F32", {3, 4})
                     .tensor("kv.0.k", "U16", {10, 2, 8})
                     .meta("kv.0.format", "bf16")
                     .tensor("kv.0.v", "U8", {10, 2, 6})
                     .meta("kv.0.v_format", "e5m2")
                     .tensor("kv.0.v_scale", "F32", {2})
                     .load();
  ASSERT_TRUE(p.ok()) << p.status().message();
  EXPECT_EQ(p->problem.q.type, Type::kE4m3);
  EXPECT_TRUE(p->problem.q_scale.per_row);
  EXPECT_EQ(p->sources[0].v.format, Format::kE5m2);
  EXPECT_EQ(p->sources[0].v.scale.count, 2);
  EXPECT_EQ(p->problem.out.type, Type::kBf16);
}

TEST(ProblemFile, LayersAndDefaults) {
  Builder b;
  for (const char* layer : {"layers.7.", "layers.12."}) {
    b.tensor(std::string(layer) + "q", "F32", {3, 4, 8})
        .tensor(std::string(layer) + "kv.0.k", "F32", {10, 2, 8})
        .tensor(std::string(layer) + "kv.0.v", "F32", {10, 2, 6});
  }
  b.meta("sm_scale", "0.5").meta("layers.12.sm_scale", "0.25").meta("kv.0.rule", "full").meta("layers.12.kv.0.rule", "window");
  b.meta("layers.12.kv.0.window_left", "3")
      .meta("text", "all")
      .meta("layers.7.text", "one")
      .tensor("context_lens", "I32", {1}, {10})
      .tensor("note.tokens", "I64", {3});
  const auto file = b.open();
  ASSERT_TRUE(file.ok()) << file.status().message();
  ASSERT_EQ(file->size(), 2U);
  EXPECT_EQ(file->name(0), "layers.7");
  EXPECT_EQ(file->notes().at("text"), "all");
  const auto first = file->load(0);
  const auto second = file->load(1);
  ASSERT_TRUE(first.ok()) << first.status().message();
  ASSERT_TRUE(second.ok()) << second.status().message();
  EXPECT_EQ(first->problem.sm_scale, 0.5F);
  EXPECT_EQ(first->notes.at("text"), "one");
  EXPECT_EQ(second->problem.sm_scale, 0.25F);
  EXPECT_EQ(second->sources[0].rule.window_left, 3);
  EXPECT_EQ(second->problem.context_lens[0], 10);
  EXPECT_FALSE(file->load(2).ok());
}

TEST(ProblemFile, RefusesByName) {
  struct Case {
    const char* message;
    Builder builder;
  };
  const Case cases[] = {
      {"f: tensor 'kv.0.block_tabel': unknown name, did you mean block_table?", paged().tensor("kv.0.block_tabel", "I32", {2, 3})},
      {"f: tensor 'K': unknown name", ragged().tensor("K", "F32", {1})},
      {"f: tensor 'kv.16.k': kv. must be followed by a source number from 0 to 15", ragged().tensor("kv.16.k", "F32", {1})},
      {"f: tensor 'kv.00.k'", ragged().tensor("kv.00.k", "F32", {1})},
      {"f: tensor 'kv.-1.k'", ragged().tensor("kv.-1.k", "F32", {1})},
      {"f: tensor 'layers.x.q'", ragged().tensor("layers.x.q", "F32", {1})},
      {"f: tensor 'q': the file also has tensors under layers.N.", ragged().tensor("layers.0.q", "F32", {1, 1, 1})},
      {"f: tensor 'q': missing", ragged().drop("q")},
      {"f: __metadata__ key 'sm_scal': unknown name, did you mean sm_scale?", ragged().meta("sm_scal", "1")},
      {"f: __metadata__ key 'kv.1.rule': the file has no tensor of that source", ragged().meta("kv.1.rule", "full")},
      {"f: __metadata__ key 'layers.3.sm_scale': the file has no tensor of that layer", ragged().meta("layers.3.sm_scale", "1")},
      {"f: sm_scale: missing from __metadata__", ragged().drop("sm_scale")},
      {"f: sm_scale: '0.1x': must be a finite number", ragged().meta("sm_scale", "0.1x")},
      {"f: sm_scale: 'nan': must be a finite number", ragged().meta("sm_scale", "nan")},
      {"f: sm_scale: '1e999': must be a finite number", ragged().meta("sm_scale", "1e999")},
      {"f: sm_scale: '': must be a finite number", ragged().meta("sm_scale", "")},
      {"f: logits_soft_cap: 'x'", ragged().meta("logits_soft_cap", "x")},
      {"f: out_type: 'e4m3': must be one of f32, f16, bf16", ragged().meta("out_type", "e4m3")},
      {"f: q: shape [3, 32]: must be [total_q, heads, d]", ragged().tensor("q", "BF16", {3, 32})},
      {"f: q: shape [3, 4, 577]", ragged().tensor("q", "BF16", {3, 4, 577})},
      {"f: q: shape [1000000000000000, 4, 0]", ragged().tensor("q", "BF16", {1'000'000'000'000'000, 4, 0})},
      {"f: q: type I32: must be F32, F16, BF16 or F8_E4M3", ragged().tensor("q", "I32", {3, 4, 8})},
      {"f: q: type U16", ragged().tensor("q", "U16", {3, 4, 8})},
      {"f: q_type: 'f16', but q is BF16", ragged().meta("q_type", "f16")},
      {"f: q_tail: type F32: must be that of q, BF16", ragged().tensor("q_tail", "F32", {3, 4, 8})},
      {"f: q_tail: shape [2, 4, 8]: must be [total_q, heads, d_tail] = [3, 4, 8]", ragged().tensor("q_tail", "BF16", {2, 4, 8})},
      {"f: q_scale: read for e4m3 queries only", ragged().tensor("q_scale", "F32", {1})},
      {"f: qo_indptr: type I64: must be I32", ragged().tensor("qo_indptr", "I64", {2})},
      {"f: qo_indptr: shape [0]: must be [requests + 1]", ragged().tensor("qo_indptr", "I32", {0})},
      {"f: context_lens: shape [2]: must be [requests] = [1]", ragged().tensor("context_lens", "I32", {2})},
      {"f: sinks: shape [3]: must be [heads] or [requests, heads] = [4]", ragged().tensor("sinks", "F32", {3})},
      {"f: sinks: type BF16: must be F32", ragged().tensor("sinks", "BF16", {4})},
      {"f: kv.0.rule: missing", ragged().drop("kv.0.rule")},
      {"f: kv.0.rule: 'casual': must be one of full, causal", ragged().meta("kv.0.rule", "casual")},
      {"f: kv.0.window_left: missing", ragged().meta("kv.0.rule", "window")},
      {"f: kv.0.window_left: '-2': must be a whole number from -1", ragged().meta("kv.0.rule", "window").meta("kv.0.window_left", "-2")},
      {"f: kv.0.window_left: not read by a problem of this kind", ragged().meta("kv.0.window_left", "4")},
      {"f: kv.0.ratio: missing", ragged().meta("kv.0.rule", "compressed")},
      {"f: kv.0.ratio: '0'", ragged().meta("kv.0.rule", "compressed").meta("kv.0.ratio", "0")},
      {"f: kv.0.indices: missing", ragged().meta("kv.0.rule", "gathered")},
      {"f: kv.0.indices: type F32: must be I32 or I64", ragged().meta("kv.0.rule", "gathered").tensor("kv.0.indices", "F32", {3, 2})},
      {"f: kv.0.indices: shape [2, 2]: must be [total_q, k] = [3, 2]",
       ragged().meta("kv.0.rule", "gathered").tensor("kv.0.indices", "I32", {2, 2})},
      {"f: kv.0.indices: not read", ragged().tensor("kv.0.indices", "I32", {3, 2})},
      {"f: kv.0.index_space: 'token'", gathered_584().meta("kv.0.index_space", "token")},
      {"f: kv.0.block_table: type I64: must be I32", paged().tensor("kv.0.block_table", "I64", {2, 3})},
      {"f: kv.0.block_table: shape [3, 3]: must be [requests, max_pages] = [2, 3]", paged().tensor("kv.0.block_table", "I32", {3, 3})},
      {"f: kv.0.kv_indices: given beside block_table", paged().tensor("kv.0.kv_indices", "I32", {2})},
      {"f: kv.0.seq_lens: missing", paged().drop("kv.0.seq_lens")},
      {"f: kv.0.seq_lens: missing", page_list().drop("kv.0.kv_last_page_len")},
      {"f: kv.0.kv_indptr: missing", page_list().drop("kv.0.kv_indptr")},
      {"f: kv.0.kv_indptr: missing: 2 requests", ragged().tensor("qo_indptr", "I32", {3}, {0, 1, 3})},
      {"f: kv.0.seq_lens: not read", ragged().tensor("kv.0.seq_lens", "I32", {1})},
      {"f: kv.0.page_size: not read", ragged().meta("kv.0.page_size", "4")},
      {"f: kv.0.page_size: '8': kv.0.k of shape", Builder(paged()).meta("kv.0.page_size", "x").meta("kv.0.page_size", "8")},
      {"f: kv.0.page_size: missing", paged().tensor("kv.0.k", "BF16", {20, 2, 8})},
      {"f: kv.0.k: shape [21, 2, 8]: rows must be a multiple of page_size = 4",
       paged().tensor("kv.0.k", "BF16", {21, 2, 8}).meta("kv.0.page_size", "4")},
      {"f: kv.0.k: shape [10, 16]: must be [rows, heads, x]", ragged().tensor("kv.0.k", "BF16", {10, 16})},
      {"f: kv.0.k: shape [10, 0, 8]", ragged().tensor("kv.0.k", "BF16", {10, 0, 8})},
      {"f: kv.0.k: type F64", ragged().tensor("kv.0.k", "F64", {10, 2, 8})},
      {"f: kv.0.k: type U16: must be", ragged().tensor("kv.0.k", "U16", {10, 2, 8})},
      {"f: kv.0.k: type BF16, but kv.0.format is e4m3", ragged().meta("kv.0.format", "e4m3")},
      {"f: kv.0.format: 'fp3': must be one of f32, f16, bf16", ragged().meta("kv.0.format", "fp3")},
      {"f: kv.0.k: 577 columns: must be from 1 to 576", ragged().tensor("kv.0.k", "BF16", {1, 2, 577})},
      {"f: kv.0.v: missing", ragged().drop("kv.0.v")},
      {"f: kv.0.v: shape [9, 2, 6]: rows, pages and heads must be those of K", ragged().tensor("kv.0.v", "BF16", {9, 2, 6})},
      {"f: kv.0.k: missing", ragged().drop("kv.0.k").drop("kv.0.v").tensor("kv.0.seq_lens", "I32", {1})},
      {"f: kv.0.k: missing", ragged().drop("kv.0.k").tensor("kv.1.k", "BF16", {10, 2, 8}).tensor("kv.1.v", "BF16", {10, 2, 8})},
      {"f: kv.0.k: a source has one of k, latent and bytes", ragged().tensor("kv.0.latent", "BF16", {10, 2, 8})},
      {"f: kv.0.latent: given beside v", ragged().drop("kv.0.k").tensor("kv.0.latent", "BF16", {10, 2, 8})},
      {"f: kv.0.v_bytes: given beside v", ragged().tensor("kv.0.v_bytes", "U8", {10, 2, 8})},
      {"f: kv.0.value_width: missing", mxfp4().drop("kv.0.value_width")},
      {"f: kv.0.value_width: '1000'", mxfp4().meta("kv.0.value_width", "1000")},
      {"f: kv.0.value_width: 5: V has 6 columns", ragged().meta("kv.0.value_width", "5")},
      {"f: kv.0.width: 9: K has 8 columns", ragged().meta("kv.0.width", "9")},
      {"f: kv.0.heads: 3: the records have 2", ragged().meta("kv.0.heads", "3")},
      {"f: kv.0.format: missing", mxfp4().drop("kv.0.format")},
      {"f: kv.0.bytes: records of 47 bytes: 96 columns of mxfp4 take 48", mxfp4().tensor("kv.0.bytes", "U8", {7, 1, 47})},
      {"f: kv.0.scales: missing", mxfp4().drop("kv.0.scales")},
      {"f: kv.0.scales: type F32: must be U8 or F8_E8M0", mxfp4().tensor("kv.0.scales", "F32", {8, 1, 4})},
      {"f: kv.0.scales: 2 scales a record: 96 columns of mxfp4 have 3", mxfp4().tensor("kv.0.scales", "U8", {8, 1, 2})},
      {"f: kv.0.scales: shape [6, 1, 4]: rows, pages and heads", mxfp4().tensor("kv.0.scales", "U8", {6, 1, 4})},
      {"f: kv.0.scales: not read", ragged().tensor("kv.0.scales", "U8", {10, 2, 1})},
      {"f: kv.0.v_scales: not read", ragged().tensor("kv.0.v_scales", "U8", {10, 2, 1})},
      {"f: kv.0.k_scale: shape [3]: must be [1] or [kv heads] = [2]", ragged().tensor("kv.0.k_scale", "F32", {3})},
      {"f: kv.0.v_scale: not read", gathered_584().tensor("kv.0.v_scale", "F32", {1})},
      {"f: kv.0.bytes: pages of 1000 bytes: 2 records take 584 each", gathered_584().tensor("kv.0.bytes", "U8", {2, 1000})},
      {"f: kv.0.bytes: shape [2, 2, 1, 584]: fp8_ds_584 is stored as [pages, bytes of a page]",
       gathered_584().tensor("kv.0.bytes", "U8", {2, 2, 1, 584})},
      {"f: kv.0.page_size: missing", gathered_584().drop("kv.0.page_size")},
      {"f: kv.0.bytes: 8 columns: records of fp8_ds_584 have 512", gathered_584().tensor("q", "BF16", {3, 4, 8})},
      {"f: kv.0.bytes: fp8_ds_584 keeps its scales at the end of pages, and this source is ragged",
       gathered_584().meta("kv.0.rule", "full").drop("kv.0.indices")},
      {"f: kv.0.bytes: 40 columns: records of mxfp4_rope_bf16 have more than 64",
       mxfp4().meta("kv.0.format", "mxfp4_rope_bf16").drop("q_tail").tensor("q", "F32", {2, 4, 40})},
      {"f: kv.0.first_position: shape [2]: must be [requests] = [1]", ragged().tensor("kv.0.first_position", "I32", {2})},
  };
  for (const Case& c : cases) {
    Builder builder = c.builder;
    const auto p = builder.load();
    ASSERT_FALSE(p.ok()) << "accepted, wanted: " << c.message;
    if (std::string(c.message).find("'8': kv.0.k") != std::string::npos) {
      EXPECT_NE(p.status().message().find("f: kv.0.page_size: 8: kv.0.k of shape [5, 4, 2, 8] has pages of 4"), std::string::npos)
          << p.status().message();
      continue;
    }
    EXPECT_EQ(p.status().message().rfind(c.message, 0), 0U) << p.status().message() << "\nwanted: " << c.message;
  }
}

std::string bytes_of(const std::string& path) {
  std::ostringstream s;
  s << std::ifstream(path, std::ios::binary).rdbuf();
  return s.str();
}

TEST(ProblemFile, SavingWhatWasLoadedIsAFixedPoint) {
  const TempDir dir;
  const Builder kinds[] = {
      ragged(),
      paged(),
      page_list(),
      gathered_584(),
      mxfp4(),
      ragged().tensor("kv.0.k", "I8", {10, 2, 8}).tensor("kv.0.scales", "F32", {10, 2, 1}),
      ragged().tensor("kv.0.k_scale", "F32", {2}).tensor("kv.0.k", "F8_E4M3", {10, 2, 8}).tensor("sinks", "F32", {1, 4})};
  for (const Builder& kind : kinds) {
    Builder builder = kind;
    const auto p = builder.load();
    ASSERT_TRUE(p.ok()) << p.status().message();
    const ProblemToSave save[] = {{"", &p->problem, {{"note", "n"}}}};
    Status status = save_problems(dir.file("a"), save);
    ASSERT_TRUE(status.ok()) << status.message();
    const auto file = ProblemFile::open(dir.file("a"));
    ASSERT_TRUE(file.ok()) << file.status().message();
    const auto again = file->load(0);
    ASSERT_TRUE(again.ok()) << again.status().message();
    const ProblemToSave save_again[] = {{"", &again->problem, again->notes}};
    status = save_problems(dir.file("b"), save_again);
    ASSERT_TRUE(status.ok()) << status.message();
    EXPECT_EQ(bytes_of(dir.file("a")), bytes_of(dir.file("b")));
    // And the first file holds the original's bytes.
    const Source& s = p->sources[0];
    const Source& t = again->sources[0];
    EXPECT_EQ(s.k.format, t.k.format);
    EXPECT_EQ(std::memcmp(p->problem.q.data, again->problem.q.data, 3), 0);
    EXPECT_EQ(std::memcmp(s.k.data, t.k.data, 7 * 8), 0);
    EXPECT_EQ(s.addressing.kind, t.addressing.kind);
  }
}

TEST(ProblemFile, SavesThroughStrides) {
  const TempDir dir;
  auto p = ragged().load();
  ASSERT_TRUE(p.ok());
  // Heads outside rows, every second row, the query's rows backwards.
  std::vector<uint16_t> k(2 * 20 * 8);
  for (size_t i = 0; i < k.size(); ++i) k[i] = static_cast<uint16_t>(i);
  Source& s = p->sources[0];
  s.k.data = k.data();
  s.k.head_stride_bytes = 20 * 8 * 2;
  s.k.row_stride_bytes = 2 * 8 * 2;
  const auto* q = static_cast<const uint16_t*>(p->problem.q.data);
  p->problem.q.data = q + 2 * 4 * 8;
  p->problem.q.row_stride_bytes = -(4 * 8 * 2);
  const ProblemToSave save[] = {{"", &p->problem, {}}};
  ASSERT_TRUE(save_problems(dir.file("a"), save).ok());
  const auto again = ProblemFile::open(dir.file("a")).value().load(0);
  ASSERT_TRUE(again.ok());
  const auto* got_k = static_cast<const uint16_t*>(again->sources[0].k.data);
  const auto* got_q = static_cast<const uint16_t*>(again->problem.q.data);
  for (size_t row = 0; row < 10; ++row) {
    for (size_t head = 0; head < 2; ++head) {
      for (size_t c = 0; c < 8; ++c) ASSERT_EQ(got_k[(row * 2 + head) * 8 + c], k[head * 160 + row * 16 + c]);
    }
  }
  EXPECT_EQ(std::memcmp(got_q, q + 2 * 4 * 8, 64), 0);
  EXPECT_EQ(std::memcmp(got_q + 2 * 4 * 8, q, 64), 0);
}

TEST(ProblemFile, SaveRefusesBadNames) {
  const TempDir dir;
  const auto p = ragged().load();
  ASSERT_TRUE(p.ok());
  const ProblemToSave bad_name[] = {{"layer.3", &p->problem, {}}};
  EXPECT_FALSE(save_problems(dir.file("a"), bad_name).ok());
  const ProblemToSave bad_note[] = {{"", &p->problem, {{"nota", "x"}}}};
  EXPECT_FALSE(save_problems(dir.file("a"), bad_note).ok());
  const ProblemToSave twice[] = {{"layers.3", &p->problem, {}}, {"layers.3", &p->problem, {}}};
  EXPECT_FALSE(save_problems(dir.file("a"), twice).ok());
}

// docs/problem_files.md is the table of these names: none may be missing from it.
TEST(ProblemFile, TheDocsNameEveryField) {
  const std::string docs = bytes_of(HEADWATER_SOURCE_DIR "/docs/problem_files.md");
  ASSERT_FALSE(docs.empty());
  const auto all = [&](std::span<const std::string_view> names, const std::string& prefix) {
    for (const std::string_view name : names) {
      EXPECT_NE(docs.find("`" + prefix + std::string(name) + "`"), std::string::npos) << prefix << name;
    }
  };
  all(problem_tensor_names(), "");
  all(problem_metadata_keys(), "");
  all(source_tensor_names(), "kv.I.");
  all(source_metadata_keys(), "kv.I.");
  for (const FormatInfo& info : all_formats()) EXPECT_NE(docs.find("`" + std::string(info.name) + "`"), std::string::npos) << info.name;
}

}  // namespace
}  // namespace headwater::io
