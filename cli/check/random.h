// A small generator with the same numbers on every platform (std distributions differ between libraries).
#pragma once

#include <cstdint>
#include <vector>

namespace headwater::conformance {

class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) { next(); }

  uint64_t next() {  // splitmix64
    state_ += 0x9e3779b97f4a7c15ULL;
    uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
    return z ^ (z >> 31);
  }
  // In [low, high], both included.
  int64_t integer(int64_t low, int64_t high) {
    return high <= low ? low : low + static_cast<int64_t>(next() % static_cast<uint64_t>(high - low + 1));
  }
  double uniform(double low, double high) { return low + (high - low) * static_cast<double>(next() >> 11) * 0x1p-53; }
  bool one_in(int64_t n) { return integer(1, n) == 1; }
  // Four uniform 16-bit numbers: near enough to normal, mean 0, variance 1, at most 3.46 from 0.
  float normal() {
    const uint64_t bits = next();
    const auto part = [bits](int shift) { return static_cast<int32_t>((bits >> shift) & 0xffff); };
    return static_cast<float>(part(0) + part(16) + part(32) + part(48) - 131070) * (1.7320508F / 65536.0F);
  }
  template <class T>
  const T& pick(const std::vector<T>& from) {
    return from[static_cast<size_t>(integer(0, static_cast<int64_t>(from.size()) - 1))];
  }
  template <class T>
  void shuffle(std::vector<T>* items) {
    for (size_t i = items->size(); i > 1; --i)
      std::swap((*items)[i - 1], (*items)[static_cast<size_t>(integer(0, static_cast<int64_t>(i) - 1))]);
  }

 private:
  uint64_t state_;
};

// Streams that do not resemble each other for neighbouring cases and purposes.
inline uint64_t mix(uint64_t seed, uint64_t a, uint64_t b = 0) {
  return Random(Random(Random(seed).next() ^ a).next() ^ (b * 0xd1342543de82ef95ULL)).next();
}

}  // namespace headwater::conformance
