#include "paceline/planning/schedules/plan.h"

#include <algorithm>
#include <sstream>

#include "paceline/engine/core/check.h"

namespace paceline::pipeline {
namespace {

// A text of a few characters must not make a plan that fills the memory.
constexpr int kMostInText = 100'000;

std::string_view trimmed(std::string_view text) {
  const auto first = text.find_first_not_of(" \t\r");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t\r") - first + 1);
}

std::vector<Action> parse_line(const std::string& line) {
  std::vector<Action> actions;
  std::istringstream cells(line);
  for (std::string cell; std::getline(cells, cell, ',');) {
    const auto text = trimmed(cell);
    if (text.empty()) continue;
    actions.push_back(parse_action(text));
    check(actions.back().stage < kMostInText && actions.back().micro_batch < kMostInText,
          "{}: a plan in text has fewer than {} stages and micro-batches", text, kMostInText);
  }
  return actions;
}

void place(Plan& plan, const Action& action, int rank) {
  const auto stage = static_cast<std::size_t>(action.stage);
  if (plan.rank_of_stage.size() <= stage) plan.rank_of_stage.resize(stage + 1, -1);
  int& owner = plan.rank_of_stage[stage];
  check(owner == -1 || owner == rank, "{}: stage {} is on rank {} and on rank {}",
        to_string(action), action.stage, owner, rank);
  owner = rank;
  plan.num_micro_batches = std::max(plan.num_micro_batches, action.micro_batch + 1);
}

}  // namespace

std::vector<int> looped_layout(int num_ranks, int stages_per_rank) {
  check(num_ranks >= 1 && stages_per_rank >= 1,
        "a pipeline needs at least one rank and one stage a rank, not {} and {}", num_ranks,
        stages_per_rank);
  std::vector<int> ranks(static_cast<std::size_t>(num_ranks) *
                         static_cast<std::size_t>(stages_per_rank));
  for (std::size_t stage = 0; stage < ranks.size(); ++stage)
    ranks[stage] = static_cast<int>(stage % static_cast<std::size_t>(num_ranks));
  return ranks;
}

std::vector<int> v_layout(int num_ranks) {
  std::vector<int> ranks = looped_layout(num_ranks, 2);
  std::reverse(ranks.begin() + num_ranks, ranks.end());
  return ranks;
}

std::string to_csv(const Plan& plan) {
  std::string text;
  for (const auto& actions : plan.ranks) {
    for (std::size_t i = 0; i < actions.size(); ++i) {
      if (i > 0) text += ',';
      text += to_string(actions[i]);
    }
    text += '\n';
  }
  return text;
}

Plan plan_from_csv(const std::string& text, const std::string& name) {
  Plan plan;
  plan.name = name;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    plan.ranks.push_back(parse_line(line));
    for (const Action& action : plan.ranks.back()) place(plan, action, plan.num_ranks() - 1);
  }
  for (int stage = 0; stage < plan.num_stages(); ++stage) {
    check(plan.rank_of_stage[static_cast<std::size_t>(stage)] >= 0,
          "plan {}: no rank has stage {} of {}", name, stage, plan.num_stages());
  }
  return plan;
}

}  // namespace paceline::pipeline
