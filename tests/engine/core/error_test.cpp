#include "paceline/engine/core/error.h"

#include <chrono>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "paceline/engine/core/error_text.h"

namespace paceline {
namespace {

using namespace std::chrono_literals;

TEST(Error, without_a_context_has_empty_fields) {
  const Error error(ErrorCode::kInvalid, "wrong");
  EXPECT_EQ(error.operation(), "");
  EXPECT_EQ(error.group(), "");
  EXPECT_EQ(error.ranks(), std::vector<int>());
  EXPECT_FALSE(error.deadline());
}

TEST(Error, with_fills_only_the_fields_that_were_empty) {
  const Error late(ErrorCode::kTimeout, "late", {.ranks = {3}, .deadline = 20ms});
  const Error known = late.with({.operation = "recv", .group = "world", .ranks = {1, 2}});
  EXPECT_EQ(known.code(), ErrorCode::kTimeout);
  EXPECT_STREQ(known.what(), "late");
  EXPECT_EQ(known.operation(), "recv");
  EXPECT_EQ(known.group(), "world");
  EXPECT_EQ(known.ranks(), std::vector{3});
  EXPECT_EQ(known.deadline(), 20ms);
  EXPECT_EQ(known.with({.operation = "send", .deadline = 1ms}).operation(), "recv");
}

TEST(Error, other_words_keep_the_context) {
  const Error lost(ErrorCode::kPeerLost, "it is gone", {.group = "world", .ranks = {1}});
  const Error reported = reported_by("rank 0", "a collective", lost.reworded("rank 1 is gone"));
  EXPECT_STREQ(reported.what(), "rank 0: a collective: rank 1 is gone");
  EXPECT_EQ(reported.code(), ErrorCode::kPeerLost);
  EXPECT_EQ(reported.group(), "world");
  EXPECT_EQ(reported.ranks(), std::vector{1});
}

}  // namespace
}  // namespace paceline
