#include "src/io/safetensors.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <cstring>

#include "tests/io/hostile.h"
#include "tests/io/temp_file.h"

namespace headwater::io {
namespace {

using Metadata = std::map<std::string, std::string, std::less<>>;

Result<Safetensors> parse(const std::string& bytes) { return Safetensors::parse(std::as_bytes(std::span(bytes)), "f"); }

TEST(Safetensors, ReadsEveryTypeAtItsWidth) {
  const struct {
    const char* name;
    int bits;
  } kTypes[] = {{"BOOL", 8},    {"F4", 4},      {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"U8", 8},   {"I8", 8},    {"F8_E5M2", 8},
                {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"I16", 16},    {"U16", 16},    {"F16", 16}, {"BF16", 16}, {"I32", 32},
                {"U32", 32},    {"F32", 32},    {"C64", 64},    {"F64", 64},    {"I64", 64}, {"U64", 64}};
  for (const auto& type : kTypes) {
    const size_t bytes = static_cast<size_t>(type.bits);  // of 8 elements
    const std::string file =
        raw_safetensors("{" + tensor("a", type.name, "[2,4]", "[0," + std::to_string(bytes) + "]") + "}", std::string(bytes, 'x'));
    const auto f = parse(file);
    ASSERT_TRUE(f.ok()) << type.name << ": " << f.status().message();
    EXPECT_EQ(dtype_name(f->find("a")->type), type.name);
    EXPECT_EQ(dtype_bits(f->find("a")->type), type.bits);
    EXPECT_FALSE(parse(raw_safetensors("{" + tensor("a", type.name, "[2,4]", "[0," + std::to_string(bytes - 1) + "]") + "}",
                                       std::string(bytes - 1, 'x')))
                     .ok());
  }
}

TEST(Safetensors, ReadsFromOddOffsets) {
  // The header's length makes every tensor start at an odd address of the file, and `b` at an odd offset of the data.
  const std::string header = "{" + tensor("a", "U8", "[3]", "[0,3]") + "," + tensor("b", "I32", "[2]", "[3,11]") + "}";
  const std::string file = raw_safetensors(header + (header.size() % 2 == 0 ? " " : ""), std::string("abc\1\0\0\0\2\0\0\0", 11));
  const auto f = parse(file);
  ASSERT_TRUE(f.ok()) << f.status().message();
  int32_t values[2];
  ASSERT_TRUE(f->read(*f->find("b"), std::as_writable_bytes(std::span(values))).ok());
  EXPECT_EQ(values[0], 1);
  EXPECT_EQ(values[1], 2);
}

TEST(Safetensors, EmptyFileOfTensorsAndScalars) {
  EXPECT_TRUE(parse(raw_safetensors("{}", "")).ok());
  EXPECT_TRUE(parse(raw_safetensors("{\"__metadata__\":{}}  \n", "")).ok());
  const auto scalar = parse(raw_safetensors(
      "{" + tensor("s", "F32", "[]", "[0,4]") + "," + tensor("z", "F32", "[0,9223372036854775807]", "[4,4]") + "}", "1234"));
  ASSERT_TRUE(scalar.ok()) << scalar.status().message();
  EXPECT_EQ(scalar->find("s")->shape.size(), 0U);
}

TEST(Safetensors, RefusesHostileFiles) {
  for (const Hostile& hostile : hostile_files()) {
    const auto f = parse(hostile.bytes);
    ASSERT_FALSE(f.ok()) << "accepted: " << hostile.bytes.substr(0, 200);
    const std::string message = f.status().message();
    EXPECT_EQ(f.status().code(), StatusCode::kInvalid);
    EXPECT_NE(message.find(hostile.why), std::string::npos) << message << "\nfor " << hostile.bytes.substr(0, 200);
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
    EXPECT_LT(message.size(), 400U);
  }
}

TEST(Safetensors, EveryCutOfAFileIsRefused) {
  const std::string file = raw_safetensors("{" + tensor("a", "F32", "[2]", "[0,8]") + "}", "abcdefgh");
  ASSERT_TRUE(parse(file).ok());
  for (size_t n = 0; n < file.size(); ++n) EXPECT_FALSE(parse(file.substr(0, n)).ok()) << n;
}

TEST(Safetensors, TooManyTensors) {
  std::string header = "{";
  for (size_t i = 0; i <= kMaxTensors; ++i) header += (i == 0 ? "" : ",") + tensor(std::to_string(i), "U8", "[0]", "[0,0]");
  const auto f = parse(raw_safetensors(header + "}", ""));
  ASSERT_FALSE(f.ok());
  EXPECT_NE(f.status().message().find("more than 200000 tensors"), std::string::npos) << f.status().message();
}

TEST(Safetensors, AHugeHeaderLengthAllocatesNothing) {
  const TempDir dir;
  // A sparse file of 1 TiB whose header claims all of it.
  const std::string path = dir.write("sparse", le64((uint64_t{1} << 40) - 8));
  ASSERT_EQ(::truncate(path.c_str(), off_t{1} << 40), 0);
  const auto f = Safetensors::open(path);
  ASSERT_FALSE(f.ok());
  struct rusage usage {};
  getrusage(RUSAGE_SELF, &usage);
  EXPECT_LT(usage.ru_maxrss, 1 << 20) << "KiB resident";
}

TEST(Safetensors, OpenRefusesWhatIsNoRegularFile) {
  const TempDir dir;
  EXPECT_NE(Safetensors::open(dir.file("absent")).status().message().find("No such file"), std::string::npos);
  EXPECT_NE(Safetensors::open(dir.file("")).status().message().find("not a regular file"), std::string::npos);
  ASSERT_EQ(::mkfifo(dir.file("fifo").c_str(), 0600), 0);
  EXPECT_NE(Safetensors::open(dir.file("fifo")).status().message().find("not a regular file"), std::string::npos);  // and does not hang
}

TEST(Safetensors, AFileThatShrinksWhileOpen) {
  const TempDir dir;
  const std::string path = dir.write("f", raw_safetensors("{" + tensor("a", "U8", "[4]", "[0,4]") + "}", "abcd"));
  const auto f = Safetensors::open(path);
  ASSERT_TRUE(f.ok());
  ASSERT_EQ(::truncate(path.c_str(), 20), 0);
  char data[4];
  const Status status = f->read(*f->find("a"), std::as_writable_bytes(std::span(data)));
  EXPECT_NE(status.message().find("became shorter"), std::string::npos) << status.message();
}

TEST(Safetensors, WritesWhatItReads) {
  const TempDir dir;
  const float floats[] = {1.0F, -2.5F};
  const uint8_t bytes[] = {1, 2, 3};
  const int64_t longs[] = {INT64_MIN, 7};
  const TensorToWrite tensors[] = {{"odd", DType::kU8, {3}, bytes},
                                   {"f", DType::kF32, {2, 1}, floats},
                                   {"l", DType::kI64, {2}, longs},
                                   {"none", DType::kF32, {0, 5}, nullptr}};
  const Metadata metadata{{"a", "line\nbreak \"quoted\""}, {"umlaut", "\xc3\xa4"}};
  const std::string path = dir.file("out");
  ASSERT_TRUE(write_safetensors(path, tensors, metadata).ok());
  const auto f = Safetensors::open(path);
  ASSERT_TRUE(f.ok()) << f.status().message();
  EXPECT_EQ(f->metadata(), metadata);
  for (const TensorToWrite& t : tensors) {
    const TensorInfo* info = f->find(t.name);
    ASSERT_NE(info, nullptr);
    EXPECT_EQ(info->type, t.type);
    EXPECT_EQ(info->shape, t.shape);
    EXPECT_EQ(info->begin % static_cast<uint64_t>(dtype_bits(t.type) / 8), 0U) << "aligned to its element";
    std::string got(info->bytes(), '\0');
    ASSERT_TRUE(f->read(*info, std::as_writable_bytes(std::span(got))).ok());
    if (!got.empty()) {
      EXPECT_EQ(std::memcmp(got.data(), t.data, got.size()), 0);
    }
  }
}

TEST(Safetensors, AFailedWriteLeavesTheOldFile) {
  const TempDir dir;
  const std::string path = dir.write("old", "precious");
  const TensorToWrite twice[] = {{"a", DType::kU8, {0}, nullptr}, {"a", DType::kU8, {0}, nullptr}};
  EXPECT_FALSE(write_safetensors(path, twice, {}).ok());
  const TensorToWrite negative[] = {{"a", DType::kU8, {-1}, nullptr}};
  EXPECT_FALSE(write_safetensors(path, negative, {}).ok());
  EXPECT_FALSE(write_safetensors(path, {}, {{"bad", "\xff"}}).ok());
  EXPECT_FALSE(write_safetensors(dir.file("no/such/dir"), {}, {}).ok());
  std::string content;
  std::ifstream(path) >> content;
  EXPECT_EQ(content, "precious");
}

}  // namespace
}  // namespace headwater::io
