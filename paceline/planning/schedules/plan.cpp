#include "paceline/planning/schedules/plan.h"

#include <algorithm>
#include <array>
#include <limits>
#include <optional>
#include <sstream>

#include "paceline/engine/core/check.h"
#include "paceline/engine/core/number_text.h"
#include "paceline/planning/schedules/simulate.h"

namespace paceline::pipeline {

namespace {

constexpr std::string_view kLetters = "FBIW";
constexpr int kLargest = std::numeric_limits<int>::max();

}  // namespace

char letter_of(ActionKind kind) { return kLetters[static_cast<std::size_t>(kind)]; }

std::string to_string(const Action& action) {
  return fmt::format("{}{}{}", action.stage, letter_of(action.kind), action.micro_batch);
}

Action parse_action(std::string_view text) {
  const std::size_t at = text.find_first_of(kLetters);
  if (at != std::string_view::npos) {
    const auto stage = parse_number<int>(text.substr(0, at), 0, kLargest);
    const auto micro_batch = parse_number<int>(text.substr(at + 1), 0, kLargest);
    if (stage && micro_batch) {
      return {static_cast<ActionKind>(kLetters.find(text[at])), *stage, *micro_batch};
    }
  }
  fail(ErrorCode::kInvalid,
       "'{}' is not an action of a pipeline; write stage, F, B, I or W, and micro-batch, such as "
       "0F0",
       text);
}

namespace {

// A limit, so that a text of a few characters cannot make a plan that fills the memory.
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

namespace {

void require_layout(const Plan& plan) {
  check(plan.num_stages() >= 1 && plan.num_micro_batches >= 1 && plan.num_ranks() >= 1,
        "plan {}: {} stages, {} micro-batches, {} ranks; at least one of each is needed", plan.name,
        plan.num_stages(), plan.num_micro_batches, plan.num_ranks());
  std::vector<bool> has_stage(plan.ranks.size());
  for (int stage = 0; stage < plan.num_stages(); ++stage) {
    const int rank = plan.rank_of_stage[static_cast<std::size_t>(stage)];
    check(rank >= 0 && rank < plan.num_ranks(), "plan {}: stage {} is on rank {} of {}", plan.name,
          stage, rank, plan.num_ranks());
    has_stage[static_cast<std::size_t>(rank)] = true;
  }
  const auto idle = std::find(has_stage.begin(), has_stage.end(), false) - has_stage.begin();
  check(idle == plan.num_ranks(), "plan {}: rank {} has no stage", plan.name, idle);
}

using Counts = std::array<int, 4>;  // indexed by kind

void count_action(const Plan& plan, int rank, const Action& action, std::vector<Counts>& counts) {
  const auto& [kind, stage, micro_batch] = action;
  check(stage >= 0 && stage < plan.num_stages() && micro_batch >= 0 &&
            micro_batch < plan.num_micro_batches,
        "plan {}: rank {}: {} is outside of {} stages and {} micro-batches", plan.name, rank,
        to_string(action), plan.num_stages(), plan.num_micro_batches);
  const int owner = plan.rank_of_stage[static_cast<std::size_t>(stage)];
  check(owner == rank, "plan {}: rank {}: {} belongs to rank {}, which has stage {}", plan.name,
        rank, to_string(action), owner, stage);
  const auto place =
      static_cast<std::size_t>(stage) * static_cast<std::size_t>(plan.num_micro_batches) +
      static_cast<std::size_t>(micro_batch);
  check(++counts[place][static_cast<std::size_t>(kind)] == 1, "plan {}: rank {}: {} appears twice",
        plan.name, rank, to_string(action));
}

void require_once(const Plan& plan, int stage, int micro_batch, const Counts& counts) {
  const int rank = plan.rank_of_stage[static_cast<std::size_t>(stage)];
  const auto [forward, backward, input, weight] = counts;
  const auto name = [&](ActionKind kind) { return to_string(Action{kind, stage, micro_batch}); };
  check(forward == 1, "plan {}: rank {}: {} is missing", plan.name, rank,
        name(ActionKind::kForward));
  if (backward == 1) {
    check(input + weight == 0, "plan {}: rank {}: {} appears as a whole and in halves", plan.name,
          rank, name(ActionKind::kBackward));
    return;
  }
  check(input + weight > 0, "plan {}: rank {}: {} is missing", plan.name, rank,
        name(ActionKind::kBackward));
  check(input == 1, "plan {}: rank {}: {} is missing", plan.name, rank,
        name(ActionKind::kInputGradient));
  check(weight == 1, "plan {}: rank {}: {} is missing", plan.name, rank,
        name(ActionKind::kWeightGradient));
}

// The action of the plan that stands for `wanted`: the same action, or a whole backward pass in
// place of the half that makes the input gradient, or that half in place of a whole pass.
Action as_planned(const std::vector<Action>& actions, Action wanted) {
  const auto makes = [&](const Action& action) {
    return action.stage == wanted.stage && action.micro_batch == wanted.micro_batch &&
           (action.kind == wanted.kind ||
            (action.makes_input_gradient() && wanted.makes_input_gradient()));
  };
  return *std::find_if(actions.begin(), actions.end(), makes);
}

[[noreturn]] void fail_of_waiting(const Plan& plan, const PlanClock& clock) {
  for (std::size_t rank = 0; rank < plan.ranks.size(); ++rank) {
    const std::size_t at = clock.position(static_cast<int>(rank));
    if (at == plan.ranks[rank].size()) continue;
    const Action action = plan.ranks[rank][at];
    const Action missing = *clock.missing(action);
    const auto other =
        static_cast<std::size_t>(plan.rank_of_stage[static_cast<std::size_t>(missing.stage)]);
    const Action needed = as_planned(plan.ranks[other], missing);
    if (other == rank) {
      fail(ErrorCode::kInvalid, "plan {}: rank {}: {} needs {}, which comes later on that rank",
           plan.name, rank, to_string(action), to_string(needed));
    }
    const Action stuck = plan.ranks[other][clock.position(static_cast<int>(other))];
    fail(ErrorCode::kInvalid,
         "plan {}: deadlock: rank {}: {} (action {} of {}) needs {} of rank {}, which would wait "
         "forever at {}",
         plan.name, rank, to_string(action), at, plan.ranks[rank].size(), to_string(needed), other,
         to_string(stuck));
  }
  fail(ErrorCode::kInvalid, "plan {}: a rank would wait forever", plan.name);
}

}  // namespace

void validate(const Plan& plan) {
  require_layout(plan);
  std::vector<Counts> counts(static_cast<std::size_t>(plan.num_stages()) *
                             static_cast<std::size_t>(plan.num_micro_batches));
  for (std::size_t rank = 0; rank < plan.ranks.size(); ++rank) {
    for (const Action& action : plan.ranks[rank])
      count_action(plan, static_cast<int>(rank), action, counts);
  }
  for (int stage = 0; stage < plan.num_stages(); ++stage) {
    for (int i = 0; i < plan.num_micro_batches; ++i) {
      require_once(plan, stage, i,
                   counts[static_cast<std::size_t>(stage) *
                              static_cast<std::size_t>(plan.num_micro_batches) +
                          static_cast<std::size_t>(i)]);
    }
  }
  PlanClock clock(plan.rank_of_stage, plan.num_micro_batches, equal_costs(plan.num_stages()));
  if (!clock.run(plan.ranks)) fail_of_waiting(plan, clock);
}

}  // namespace paceline::pipeline
