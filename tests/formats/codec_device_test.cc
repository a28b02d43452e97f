// The same bits on the GPU as on the CPU: every 8- and 16-bit code, and a spread of float32 patterns through every encoder.
#include <gtest/gtest.h>

#include <vector>

#include "tests/formats/codec_hash.h"

namespace headwater::formats {
namespace {

TEST(CodecDevice, SameBitsAsTheHost) {
  constexpr uint32_t kCount = 1U << 24;
  std::vector<uint64_t> hashes(kCount);
  if (!device_codec_hashes(hashes.data(), kCount)) GTEST_SKIP() << "no CUDA device";
  for (uint32_t index = 0; index < kCount; ++index) {
    ASSERT_EQ(hashes[index], codec_hash(index)) << "float32 bits " << std::hex << sample_bits(index);
  }
}

}  // namespace
}  // namespace headwater::formats
