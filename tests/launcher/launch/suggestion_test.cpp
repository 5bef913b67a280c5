#include "apps/cli/suggestion.h"

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

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

TEST(Suggestion, of_two_near_words_the_one_that_was_typed_whole_or_begins_alike) {
  EXPECT_EQ(nearest("topp", {"topo", "top"}), "top");
  EXPECT_EQ(nearest("topp", {"top", "topo"}), "top");
  EXPECT_EQ(nearest("stak", {"stop", "stacks"}), "stacks");
}

const std::vector<std::string> kCommands = {
    "run",     "submit",   "advise", "topo", "bench", "doctor", "checkpoint", "completion",
    "explain", "timeline", "ps",     "top",  "logs",  "stop",   "stacks",     "gpu-check"};

// The command with a letter doubled, left out, or swapped with the one before it.
std::vector<std::string> slips_of(const std::string& command) {
  std::vector<std::string> slips;
  for (std::size_t i = 0; i < command.size(); ++i) {
    slips.push_back(command);
    slips.back().insert(i, 1, command[i]);
    if (command.size() <= 3) continue;  // the rest could be anything
    slips.push_back(command);
    slips.back().erase(i, 1);
    slips.push_back(command);
    if (i > 0) std::swap(slips.back()[i - 1], slips.back()[i]);
  }
  return slips;
}

// Whether the slip is as near to another command: "toop" may stand for "top" or "topo".
bool is_as_near_to_another(const std::string& slip, const std::string& command) {
  return std::any_of(kCommands.begin(), kCommands.end(), [&](const std::string& other) {
    return other != command && edit_distance(slip, other) <= 1 && slip != command + command.back();
  });
}

TEST(Suggestion, a_command_with_one_slip_is_recognised) {
  for (const std::string& command : kCommands) {
    for (const std::string& slip : slips_of(command)) {
      if (is_as_near_to_another(slip, command)) continue;
      EXPECT_EQ(command_meant_by(slip, kCommands), command) << slip;
    }
  }
}

TEST(Suggestion, the_words_of_other_tools_lead_to_ours) {
  const std::vector<std::pair<const char*, const char*>> rows = {
      {"topp", "top"},        {"stak", "stacks"},
      {"status", "ps"},       {"kill", "stop"},
      {"list", "ps"},         {"jobs", "ps"},
      {"cancel", "stop"},     {"scancel", "stop"},
      {"tail", "logs"},       {"log", "logs"},
      {"trace", "timeline"},  {"monitor", "top"},
      {"squeue", "ps"},       {"sbatch", "submit"},
      {"mpirun", "run"},      {"torchrun", "run"},
      {"launch", "run"},      {"backtrace", "stacks"},
      {"benchmark", "bench"}, {"convert", "checkpoint"},
      {"ckpt", "checkpoint"}, {"tune", "advise"},
      {"lstopo", "topo"},     {"info", "doctor"},
      {"why", "explain"},     {"version", "--version"},
      {"cancle", "stop"},     {"monitr", "top"},
      {"xyzzy", ""}};
  for (const auto& [typed, command] : rows) {
    EXPECT_EQ(command_meant_by(typed, kCommands), command) << typed;
  }
}

}  // namespace
}  // namespace paceline::apps
