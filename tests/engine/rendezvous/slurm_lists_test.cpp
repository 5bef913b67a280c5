// SLURM's compact lists.

#include <random>

#include <gtest/gtest.h>

#include "paceline/engine/rendezvous/launch_environment.h"

#include "tests/harness/random_seed.h"

namespace paceline {
namespace {

using Names = std::vector<std::string>;

TEST(SlurmLists, of_nodes_are_expanded) {
  EXPECT_EQ(expand_node_list("n1"), Names{"n1"});
  EXPECT_EQ(expand_node_list("n[1-3,07],m,gpu-a[099-101]"),
            (Names{"n1", "n2", "n3", "n07", "m", "gpu-a099", "gpu-a100", "gpu-a101"}));
  EXPECT_EQ(expand_node_list("n[8-11]"), (Names{"n8", "n9", "n10", "n11"}));
}

TEST(SlurmLists, of_tasks_are_expanded) {
  EXPECT_EQ(expand_task_counts("4"), std::vector<int>{4});
  EXPECT_EQ(expand_task_counts("2(x3),1"), (std::vector<int>{2, 2, 2, 1}));
}

TEST(SlurmLists, that_are_something_else_are_none) {
  for (const char* text : {"", ",", "n[", "n[1", "n[3-1]", "n[a]", "n[]", "[1-2]", "-n", "n 1",
                           "n;x", "n[1-2]x", "n[0-99999999]", "n[1-2", "n]1"}) {
    EXPECT_EQ(expand_node_list(text), std::nullopt) << text;
  }
  for (const char* text :
       {"", "x", "0", "-1", "2(", "2(x", "2(x)", "2(x3", "2(x3)4", "2,", "2(y3)", "1(x99999999)"}) {
    EXPECT_EQ(expand_task_counts(text), std::nullopt) << text;
  }
}

TEST(SlurmLists, take_whatever_text_without_harm) {
  std::mt19937 random(harness::random_seed());
  const std::string alphabet = "n12[]-,(x) 0a";
  for (int round = 0; round < 100'000; ++round) {
    std::string text(random() % 16, ' ');
    for (char& c : text) c = alphabet[random() % alphabet.size()];
    if (const auto names = expand_node_list(text)) {
      for (const std::string& name : *names) ASSERT_FALSE(name.empty());
    }
    expand_task_counts(text);
  }
}

}  // namespace
}  // namespace paceline
