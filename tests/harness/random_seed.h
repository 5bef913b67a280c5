#pragma once

// The seed of random numbers on which the outcome of a test may depend: when a rank is killed, in
// which order calls are made, which bytes a parser reads. Data whose values do not matter keeps a
// constant seed of its own, such as the numbers that are added up and compared with a reference.

#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>

namespace paceline::harness {

// GTEST_RANDOM_SEED, or 1. The first call prints it; CTest shows the output of a test that fails,
// even if it crashed. Add the rank to the seed if ranks must draw different numbers.
inline unsigned random_seed() {
  static const unsigned seed = [] {
    const char* text = std::getenv("GTEST_RANDOM_SEED");
    const std::string word = text != nullptr ? text : "1";
    const bool is_number = !word.empty() && word.size() < 10 &&
                           word.find_first_not_of("0123456789") == std::string::npos;
    if (!is_number) throw std::invalid_argument("GTEST_RANDOM_SEED is '" + word + "'");
    std::fprintf(stderr, "random numbers: GTEST_RANDOM_SEED=%s\n", word.c_str());
    return static_cast<unsigned>(std::stoul(word));
  }();
  return seed;
}

}  // namespace paceline::harness
