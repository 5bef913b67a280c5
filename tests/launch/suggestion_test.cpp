#include "apps/suggestion.h"

#include <gtest/gtest.h>

namespace paceline::apps {
namespace {

TEST(Suggestion, distance_counts_edits_and_swaps) {
  EXPECT_EQ(edit_distance("", ""), 0);
  EXPECT_EQ(edit_distance("abc", ""), 3);
  EXPECT_EQ(edit_distance("run", "rnu"), 1);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3);
}

TEST(Suggestion, only_a_near_word_is_suggested) {
  const std::vector<std::string> known = {"--nnodes", "--node-rank", "--nproc-per-node"};
  EXPECT_EQ(nearest("--nproc", known), "--nproc-per-node");
  EXPECT_EQ(nearest("--node-rnak", known), "--node-rank");
  EXPECT_EQ(nearest("--colour", known), "");
  EXPECT_EQ(nearest("FOO", {"QOS"}), "");
  EXPECT_EQ(nearest("LOG", {"STORE", "LOG_LEVEL"}), "LOG_LEVEL");
}

}  // namespace
}  // namespace paceline::apps
