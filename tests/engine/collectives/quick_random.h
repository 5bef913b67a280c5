#pragma once

// Random numbers for large test data (splitmix64). With std::mt19937, making the data took half of
// the time of the tests that use it.

#include <cstdint>

namespace paceline {

class QuickRandom {
 public:
  explicit QuickRandom(std::uint64_t seed) : state_(seed) {}

  std::uint32_t operator()() {
    state_ += 0x9e3779b97f4a7c15;
    std::uint64_t bits = state_;
    bits = (bits ^ bits >> 30) * 0xbf58476d1ce4e5b9;
    bits = (bits ^ bits >> 27) * 0x94d049bb133111eb;
    return static_cast<std::uint32_t>(bits >> 32);
  }
  // From -1 to 1, with 24 significant bits at every magnitude, so that most sums must be rounded.
  float signed_fraction() {
    return static_cast<float>(static_cast<std::int32_t>(operator()())) * 0x1p-31F;
  }

 private:
  std::uint64_t state_;
};

}  // namespace paceline
