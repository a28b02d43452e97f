// The command as a user meets it: exit codes, one line on stderr, JSON, pipes.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>
#include <sstream>

#include "headwater/headwater.h"
#include "src/io/problem_file.h"
#include "tests/io/hostile.h"
#include "tests/io/temp_file.h"

namespace headwater::cli {
namespace {

using io::TempDir;

struct Outcome {
  int code = -1;
  std::string out;
  std::string err;
};

std::string content(const std::string& path) {
  std::ostringstream s;
  s << std::ifstream(path, std::ios::binary).rdbuf();
  return s.str();
}

Outcome headwater(const TempDir& dir, const std::string& arguments) {
  const std::string command =
      std::string(HEADWATER_COMMAND) + " " + arguments + " >" + dir.file("stdout") + " 2>" + dir.file("stderr") + " </dev/null";
  const int status = std::system(command.c_str());
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, content(dir.file("stdout")), content(dir.file("stderr"))};
}

std::string example(const char* name) { return std::string(HEADWATER_EXAMPLES) + "/" + name + ".safetensors"; }

Result<io::OwnedProblem> load(const std::string& path, size_t index = 0) {
  const Result<io::ProblemFile> file = io::ProblemFile::open(path);
  if (!file.ok()) return file.status();
  return file->load(index);
}

// Exit code 2, nothing on stdout, one line on stderr that has `piece` in it.
void expect_refused(const Outcome& o, const std::string& piece, const std::string& what) {
  EXPECT_EQ(o.code, 2) << what << "\n" << o.err;
  EXPECT_EQ(o.out, "") << what;
  EXPECT_EQ(std::count(o.err.begin(), o.err.end(), '\n'), 1) << what << "\n" << o.err;
  EXPECT_EQ(o.err.rfind("headwater: ", 0), 0U) << what << "\n" << o.err;
  EXPECT_NE(o.err.find(piece), std::string::npos) << what << "\n" << o.err;
}

TEST(Command, Help) {
  const TempDir dir;
  EXPECT_EQ(headwater(dir, "--help").code, 0);
  EXPECT_EQ(headwater(dir, "--version").out, std::string("headwater ") + version() + "\n");
  const Outcome none = headwater(dir, "");
  EXPECT_EQ(none.code, 2);
  for (const char* verb : {"run", "explain", "convert", "append", "info", "check"}) {
    EXPECT_NE(none.err.find(std::string("\n  ") + verb), std::string::npos) << verb;
    const Outcome help = headwater(dir, std::string(verb) + " --help");
    EXPECT_EQ(help.code, 0) << verb;
    EXPECT_NE(help.out.find("Usage: headwater " + std::string(verb)), std::string::npos) << help.out;
  }
}

TEST(Command, BadUsage) {
  const TempDir dir;
  const std::string file = example("v4_hca");
  const std::string x = dir.file("x");
  const struct {
    std::string arguments;
    const char* piece;
  } cases[] = {
      {"attend", "unknown verb 'attend'"},
      {"run", "FILE is required"},
      {"run " + file + " --chek", "--chek"},
      {"run " + file + " --backend tpu", "--backend"},
      {"run " + file + " --threads 0", "--threads"},
      {"run " + file + " --threads x", "--threads"},
      {"run " + file + " --kv-format fp3", "--kv-format = fp3: must be one of f32, f16"},
      {"run " + file + " --kv-format fp8_ds_656", "kv[0].k: cannot be stored as fp8_ds_656"},
      {"run " + file + " --isa mmx", "isa"},
      {"run " + file + " --kernel fastest", "fastest"},
      {"run " + file + " --layer 3", "without layers"},
      {"run " + example("gpt_oss_gqa") + " --layer 9", "the file has layers 0, 1"},
      {"run " + file + " -o " + dir.file("no/such/out"), "No such file"},
      {"run " + file + " --json " + dir.file("no/such/json"), "No such file"},
      {"convert " + file + " " + x + " --to int3", "--to = int3"},
      {"convert " + file + " " + x + " --to mxfp4 --rule best", "--rule"},
      {"convert " + file + " " + x + " --to mxfp4 --v-to bf16", "kv[0].v: has no format of its own"},
      {"convert " + file + " " + x, "--to is required"},
      {"append " + example("gpt_oss_gqa") + " " + file + " " + x, "--layer"},
      {"append " + file + " " + file + " " + x + " --source 5", "--source = 5"},
      {"append " + file + " " + file + " " + x, "unknown name"},
      {"check --cases 1 --with k=int3", "--with k=int3: no such feature"},
      {"check --cases 1 --with d_qk=64,d_qk=128", "--with d_qk=64: cannot stand with d_qk=128"},
      {"check --cases 1 --json " + dir.file("no/such/json"), "No such file"},
      {"formats " + example("smollm2_measure") + " --plot " + dir.file("."), "Is a directory"},
      {"info --matrix --json", "--json"},
  };
  for (const auto& c : cases) expect_refused(headwater(dir, c.arguments), c.piece, c.arguments);
  EXPECT_FALSE(std::filesystem::exists(x));
}

TEST(Command, HostileFiles) {
  const TempDir dir;
  int n = 0;
  for (const io::Hostile& hostile : io::hostile_files()) {
    const std::string path = dir.write("hostile", hostile.bytes);
    // Every file for one verb, every fifth one for all.
    expect_refused(headwater(dir, "run " + path), hostile.why, "run, file " + std::to_string(n));
    if (n++ % 5 != 0) continue;
    expect_refused(headwater(dir, "explain " + path), hostile.why, "explain");
    expect_refused(headwater(dir, "convert " + path + " " + dir.file("x") + " --to bf16"), hostile.why, "convert");
    expect_refused(headwater(dir, "append " + path + " " + path + " " + dir.file("x")), hostile.why, "append");
    expect_refused(headwater(dir, "append " + example("v4_hca") + " " + path + " " + dir.file("x")), hostile.why, "append rows");
  }
  expect_refused(headwater(dir, "run " + dir.file("absent")), "No such file", "absent");
  expect_refused(headwater(dir, "run /dev/zero"), "not a regular file", "device");
  expect_refused(headwater(dir, "run " + dir.file("")), "not a regular file", "directory");
}

// A name that would move the cursor or add lines reaches the terminal escaped.
TEST(Command, HostileNamesArePrintedEscaped) {
  const TempDir dir;
  const std::string path = dir.write("f", io::raw_safetensors("{" + io::tensor("\\u001b[31m\\nq", "U8", "[0]", "[0,0]") + "}", ""));
  expect_refused(headwater(dir, "run " + path), "\\x1b[31m\\x0aq", "escape");
}

// Lengths and tables inside a well-formed file are the library's to judge; nothing may crash on any of them.
TEST(Command, WrongNumbersInsideAFile) {
  const TempDir dir;
  const std::string good = content(example("r1_mla_paged_bf16"));
  const auto file = io::Safetensors::open(example("r1_mla_paged_bf16"));
  ASSERT_TRUE(file.ok());
  uint64_t header = 0;
  std::memcpy(&header, good.data(), 8);
  for (const io::TensorInfo& t : file->tensors()) {
    if (t.type != io::DType::kI32) continue;
    for (const int32_t bad : {-1, INT32_MAX, INT32_MIN, 1 << 20}) {
      std::string bytes = good;
      std::memcpy(bytes.data() + 8 + header + t.begin + (t.bytes() > 4 ? 4 : 0), &bad, 4);
      const Outcome o = headwater(dir, "run " + dir.write("bad", bytes));
      expect_refused(o, "bad: ", t.name + " = " + std::to_string(bad));
    }
  }
}

TEST(Command, RunChecksEveryExample) {
  const TempDir dir;
  for (const auto& entry : std::filesystem::directory_iterator(HEADWATER_EXAMPLES)) {
    if (entry.path().extension() != ".safetensors") continue;
    const Outcome o = headwater(dir, "run --check --json " + dir.file("json") + " " + entry.path().string());
    EXPECT_EQ(o.code, 0) << entry.path() << "\n" << o.out << o.err;
    EXPECT_EQ(o.err, "") << "a progress bar in a pipe?";
    EXPECT_EQ(o.out.find('\x1b'), std::string::npos) << o.out;
    EXPECT_NE(o.out.find("allowed"), std::string::npos) << o.out;
    const auto json = nlohmann::json::parse(content(dir.file("json")), nullptr, false);
    ASSERT_FALSE(json.is_discarded()) << entry.path();
    for (const auto& problem : json["problems"]) {
      EXPECT_TRUE(problem["check"]["passed"].get<bool>());
      EXPECT_GT(problem["warm"]["median_s"].get<double>(), 0.0);
      EXPECT_FALSE(problem["kernel"].get<std::string>().empty());
    }
  }
}

TEST(Command, JsonToStdoutIsAllOfStdout) {
  const TempDir dir;
  const Outcome o = headwater(dir, "run --json - " + example("v4_hca"));
  ASSERT_EQ(o.code, 0) << o.err;
  EXPECT_FALSE(nlohmann::json::parse(o.out, nullptr, false).is_discarded()) << o.out;
  const Outcome info = headwater(dir, "info --json");
  const auto json = nlohmann::json::parse(info.out, nullptr, false);
  ASSERT_FALSE(json.is_discarded()) << info.out;
  EXPECT_EQ(json["formats"].size(), static_cast<size_t>(kNumFormats));
}

TEST(Command, RunWritesOutAndLse) {
  const TempDir dir;
  ASSERT_EQ(headwater(dir, "run " + example("gpt_oss_gqa") + " -o " + dir.file("out") + " --layer 1").code, 0);
  const auto out = io::Safetensors::open(dir.file("out"));
  ASSERT_TRUE(out.ok()) << out.status().message();
  ASSERT_NE(out->find("layers.1.out"), nullptr);
  EXPECT_EQ(out->find("layers.1.out")->shape, (std::vector<int64_t>{4, 64, 64}));
  EXPECT_EQ(out->find("layers.1.lse")->shape, (std::vector<int64_t>{4, 64}));
  EXPECT_EQ(out->find("layers.1.out")->type, io::DType::kBf16);
  EXPECT_EQ(out->find("layers.0.out"), nullptr);
}

TEST(Command, NoGpuIsNamed) {
  const TempDir dir;
  for (const BackendInfo& backend : backends()) {
    if (backend.name != "cuda" || backend.usable) continue;
    expect_refused(headwater(dir, "run --backend cuda " + example("v4_hca")), "--backend cuda: ", "no gpu");
  }
}

TEST(Command, ForcedIsaAndThreads) {
  const TempDir dir;
  const Outcome o = headwater(dir, "run --check --isa scalar --threads 1 --batch-invariant " + example("v4_hca"));
  EXPECT_EQ(o.code, 0) << o.err;
  EXPECT_NE(o.out.find("scalar"), std::string::npos) << o.out;
}

TEST(Command, InfoMatrixNamesEveryFormat) {
  const TempDir dir;
  const Outcome o = headwater(dir, "info --matrix");
  ASSERT_EQ(o.code, 0);
  for (const FormatInfo& f : all_formats()) {
    EXPECT_NE(o.out.find("| " + std::string(f.name) + " |"), std::string::npos) << f.name << "\n" << o.out;
  }
  EXPECT_NE(o.out.find("| compressed |"), std::string::npos);
}

// Every record, K and V decoded.
std::vector<float> decoded(const Source& s) {
  const int64_t slots = s.addressing.num_pages * (s.addressing.kind == AddressingKind::kRagged ? 1 : s.addressing.page_size);
  std::vector<int64_t> all(static_cast<size_t>(slots));
  std::iota(all.begin(), all.end(), 0);
  const auto k_size = static_cast<size_t>(slots * s.heads * s.k.width);
  std::vector<float> values(k_size + static_cast<size_t>(slots * s.heads * s.d_v()));
  const Status status = gather(s, all.data(), slots, values.data(), values.data() + k_size);
  EXPECT_TRUE(status.ok()) << status.message();
  return values;
}

TEST(Command, ConvertIsLosslessToWiderFormats) {
  const TempDir dir;
  ASSERT_EQ(headwater(dir, "convert " + example("smollm2_prefill") + " " + dir.file("narrow") + " --to mxfp4 --v-to e4m3").code, 0);
  ASSERT_EQ(headwater(dir, "convert " + dir.file("narrow") + " " + dir.file("wide") + " --to f32").code, 0);
  for (size_t i = 0; i < 2; ++i) {
    const auto a = load(dir.file("narrow"), i);
    const auto b = load(dir.file("wide"), i);
    ASSERT_TRUE(a.ok() && b.ok());
    EXPECT_EQ(a->sources[0].k.format, Format::kMxfp4);
    EXPECT_EQ(a->sources[0].v.format, Format::kE4m3);
    EXPECT_EQ(a->sources[0].v.scale.count, 3);
    EXPECT_EQ(decoded(a->sources[0]), decoded(b->sources[0]));
    EXPECT_EQ(a->notes, b->notes);
  }
  EXPECT_EQ(headwater(dir, "run --check " + dir.file("narrow")).code, 0);
}

TEST(Command, ConvertRulesDiffer) {
  const TempDir dir;
  for (const char* rule : {"up", "even", "floor"}) {
    ASSERT_EQ(headwater(dir, "convert " + example("r1_mla_ragged_bf16") + " " + dir.file(rule) + " --to mxfp4 --rule " + rule).code, 0);
  }
  EXPECT_NE(content(dir.file("up")), content(dir.file("even")));
  EXPECT_NE(content(dir.file("even")), content(dir.file("floor")));
}

TEST(Command, AppendWritesTheRowsAndNothingElse) {
  const TempDir dir;
  const auto before = load(example("v4_hca"));
  ASSERT_TRUE(before.ok());
  std::vector<float> rows(3 * 512);
  for (size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<float>(i % 37) - 18.0F;
  const int64_t slots[] = {5, -1, 70};
  const io::TensorToWrite tensors[] = {{"k", io::DType::kF32, {3, 1, 512}, rows.data()}, {"slots", io::DType::kI64, {3}, slots}};
  ASSERT_TRUE(io::write_safetensors(dir.file("rows"), tensors, {}).ok());
  const Outcome o = headwater(dir, "append " + example("v4_hca") + " " + dir.file("rows") + " " + dir.file("after"));
  ASSERT_EQ(o.code, 0) << o.err;
  EXPECT_NE(o.out.find("2 rows written as fp8_ds_584, 1 skipped"), std::string::npos) << o.out;
  const auto after = load(dir.file("after"));
  ASSERT_TRUE(after.ok()) << after.status().message();
  const std::vector<float> old_values = decoded(before->sources[0]);
  const std::vector<float> new_values = decoded(after->sources[0]);
  ASSERT_EQ(old_values.size(), new_values.size());
  for (size_t i = 0; i < new_values.size() / 2; ++i) {
    const size_t slot = i / 512;
    if (slot == 5) {
      ASSERT_NEAR(new_values[i], rows[i % 512], 1.2) << i;
    } else if (slot == 70) {
      ASSERT_NEAR(new_values[i], rows[2 * 512 + i % 512], 1.2) << i;
    } else {
      ASSERT_TRUE(new_values[i] == old_values[i] || (std::isnan(new_values[i]) && std::isnan(old_values[i]))) << i;
    }
  }
  const int64_t outside[] = {5, 1 << 20, 70};
  const io::TensorToWrite bad[] = {{"k", io::DType::kF32, {3, 1, 512}, rows.data()}, {"slots", io::DType::kI64, {3}, outside}};
  ASSERT_TRUE(io::write_safetensors(dir.file("rows"), bad, {}).ok());
  expect_refused(headwater(dir, "append " + example("v4_hca") + " " + dir.file("rows") + " " + dir.file("x")), "slots[1] = 1048576",
                 "slot");
}

}  // namespace
}  // namespace headwater::cli
