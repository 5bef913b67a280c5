#pragma once

// Three ranks, one of which chooses a different value for something that must be the same on all
// ranks.

#include <chrono>
#include <string>

#include <gtest/gtest.h>

#include "tests/harness/thread_ranks.h"

namespace paceline {

// No group forms. Every rank's error contains `word`; the odd rank's error says that its choice is
// invalid.
inline void expect_odd_rank_named(int odd, const std::string& word,
                                  const harness::RanksOptions& options) {
  const auto begin = std::chrono::steady_clock::now();
  const auto results = harness::run_ranks(
      3, [](ProcessGroup&) { ADD_FAILURE() << "a group formed"; }, options);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10));
  for (const auto& result : results) {
    ASSERT_TRUE(result.error);
    EXPECT_NE(std::string(result.error->what()).find(word), std::string::npos)
        << result.error->what();
  }
  EXPECT_EQ(results[static_cast<std::size_t>(odd)].error->code(), ErrorCode::kInvalid);
}

}  // namespace paceline
