#pragma once

// The random numbers of one sample in one epoch. They depend only on (seed, epoch, index), so
// batches, threads, ranks and a resumed run do not change them. The generator is SplitMix64
// (Steele, Lea and Flood, 2014), a good 64-bit mix of its state that is cheap enough to be seeded
// for every sample.
//
// Thread safety: none; a value for one sample.

#include <cmath>
#include <cstdint>
#include <numbers>
#include <utility>

#include "paceline/engine/core/logical_shards.h"

namespace paceline::images {

class SampleRandom {
 public:
  explicit SampleRandom(std::uint64_t state) : state_(state) {}
  SampleRandom(std::uint64_t seed, std::int64_t epoch, std::int64_t index)
      : state_(SampleRandom(seed ^ static_cast<std::uint64_t>(epoch) * 0xd1342543de82ef95u).next() ^
               static_cast<std::uint64_t>(index)) {}

  std::uint64_t next() { return mixed(std::exchange(state_, state_ + kMixStep)); }
  // A number in [0, bound). For a bound far below 2^32 the bias is below 2^-32.
  std::int64_t below(std::int64_t bound) {
    return static_cast<std::int64_t>((next() >> 32) * static_cast<std::uint64_t>(bound) >> 32);
  }
  // A number in [low, high).
  double uniform(double low = 0, double high = 1) {
    return low + (high - low) * (static_cast<double>(next() >> 11) * 0x1p-53);
  }
  // A normally distributed number of mean 0 and variance 1, by Box and Muller.
  double normal() {
    const double radius = std::sqrt(-2 * std::log(1 - uniform()));
    return radius * std::cos(2 * std::numbers::pi * uniform());
  }
  // A beta-distributed number with parameters (a, a): X / (X + Y), where gamma() draws both.
  double beta(double a) {
    const double x = gamma(a), y = gamma(a);
    return x + y > 0 ? x / (x + y) : uniform() < 0.5 ? 0 : 1;
  }

 private:
  // A gamma-distributed number by Marsaglia and Tsang (2000); for a < 1 it is boosted as they
  // propose.
  double gamma(double a) {
    if (a < 1) {
      const double u = 1 - uniform();
      return gamma(a + 1) * std::pow(u, 1 / a);
    }
    const double d = a - 1.0 / 3, c = 1 / std::sqrt(9 * d);
    while (true) {
      const double x = normal(), v = std::pow(1 + c * x, 3);
      if (v > 0 && std::log(1 - uniform()) < 0.5 * x * x + d - d * v + d * std::log(v))
        return d * v;
    }
  }

  std::uint64_t state_;
};

}  // namespace paceline::images
