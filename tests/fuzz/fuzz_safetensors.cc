// Any bytes as a file: a Status or a file whose every tensor can be read, and every problem loaded.
#include <cstddef>
#include <cstdint>
#include <vector>

#include "src/io/problem_file.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace headwater;
  auto file = io::Safetensors::parse(std::as_bytes(std::span(data, size)), "fuzz");
  if (!file.ok()) return 0;
  uint64_t total = 0;
  for (const io::TensorInfo& t : file->tensors()) {
    total += t.bytes();
    std::vector<std::byte> bytes(t.bytes());
    if (!file->read(t, bytes).ok()) __builtin_trap();
  }
  if (total > size) __builtin_trap();  // tensors overlap, or reach past the file
  const auto problems = io::ProblemFile::from(std::move(file).value());
  for (size_t i = 0; problems.ok() && i < problems->size() && i < 4; ++i) (void)problems->load(i).ok();
  return 0;
}
