#include "paceline/planning/schedules/pipeline_schedule.h"

#include <algorithm>
#include <array>
#include <limits>
#include <optional>
#include <sstream>

#include "paceline/engine/core/check.h"
#include "paceline/engine/core/option_text.h"
#include "paceline/planning/schedules/schedule_checks.h"
#include "paceline/planning/schedules/simulate.h"

namespace paceline::pipeline {

namespace {

constexpr std::string_view kLetters = "FBIW";
constexpr int kLargest = std::numeric_limits<int>::max();

}  // namespace

char letter_of(Action::Kind kind) { return kLetters[static_cast<std::size_t>(kind)]; }

std::string to_string(const Action& action) {
  return fmt::format("{}{}{}", action.stage, letter_of(action.kind), action.micro_batch);
}

Action parse_action(std::string_view text) {
  const std::size_t at = text.find_first_of(kLetters);
  if (at != std::string_view::npos) {
    const auto stage = parse_number<int>(text.substr(0, at), 0, kLargest);
    const auto micro_batch = parse_number<int>(text.substr(at + 1), 0, kLargest);
    if (stage && micro_batch) {
      return {static_cast<Action::Kind>(kLetters.find(text[at])), *stage, *micro_batch};
    }
  }
  fail(ErrorCode::kInvalid,
       "'{}' is not an action of a pipeline; write stage, F, B, I or W, and micro-batch, such as "
       "0F0",
       text);
}

namespace {

// Numbers of stages and micro-batches in a text must be below this limit. Otherwise a text of a few
// characters could make a schedule that fills the memory.
constexpr int kMaxInText = 100'000;

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
    check(actions.back().stage < kMaxInText && actions.back().micro_batch < kMaxInText,
          "{}: a schedule in text has fewer than {} stages and micro-batches", text, kMaxInText);
  }
  return actions;
}

void place(PipelineSchedule& schedule, const Action& action, int rank) {
  const auto stage = static_cast<std::size_t>(action.stage);
  if (schedule.rank_of_stage.size() <= stage) schedule.rank_of_stage.resize(stage + 1, -1);
  int& owner = schedule.rank_of_stage[stage];
  check(owner == -1 || owner == rank, "{}: stage {} is on rank {} and on rank {}",
        to_string(action), action.stage, owner, rank);
  owner = rank;
  schedule.num_micro_batches = std::max(schedule.num_micro_batches, action.micro_batch + 1);
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

std::string to_csv(const PipelineSchedule& schedule) {
  std::string text;
  for (const auto& actions : schedule.ranks) {
    for (std::size_t i = 0; i < actions.size(); ++i) {
      if (i > 0) text += ',';
      text += to_string(actions[i]);
    }
    text += '\n';
  }
  return text;
}

}  // namespace paceline::pipeline

namespace paceline {

PipelineSchedule PipelineSchedule::from_csv(const std::string& text, const std::string& name) {
  PipelineSchedule schedule;
  schedule.name = name;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    schedule.ranks.push_back(pipeline::parse_line(line));
    for (const pipeline::Action& action : schedule.ranks.back())
      pipeline::place(schedule, action, schedule.num_ranks() - 1);
  }
  for (int stage = 0; stage < schedule.num_stages(); ++stage) {
    check(schedule.rank_of_stage[static_cast<std::size_t>(stage)] >= 0,
          "schedule {}: no rank has stage {} of {}", name, stage, schedule.num_stages());
  }
  return schedule;
}

}  // namespace paceline

namespace paceline::pipeline {

namespace {

void require_layout(const PipelineSchedule& schedule) {
  check(schedule.num_stages() >= 1 && schedule.num_micro_batches >= 1 && schedule.num_ranks() >= 1,
        "schedule {}: {} stages, {} micro-batches, {} ranks; at least one of each is needed",
        schedule.name, schedule.num_stages(), schedule.num_micro_batches, schedule.num_ranks());
  std::vector<bool> has_stage(schedule.ranks.size());
  for (int stage = 0; stage < schedule.num_stages(); ++stage) {
    const int rank = schedule.rank_of_stage[static_cast<std::size_t>(stage)];
    check(rank >= 0 && rank < schedule.num_ranks(), "schedule {}: stage {} is on rank {} of {}",
          schedule.name, stage, rank, schedule.num_ranks());
    has_stage[static_cast<std::size_t>(rank)] = true;
  }
  const auto idle = std::find(has_stage.begin(), has_stage.end(), false) - has_stage.begin();
  check(idle == schedule.num_ranks(), "schedule {}: rank {} has no stage", schedule.name, idle);
}

using Counts = std::array<int, 4>;  // indexed by kind

void count_action(const PipelineSchedule& schedule, int rank, const Action& action,
                  std::vector<Counts>& counts) {
  const auto& [kind, stage, micro_batch] = action;
  check(stage >= 0 && stage < schedule.num_stages() && micro_batch >= 0 &&
            micro_batch < schedule.num_micro_batches,
        "schedule {}: rank {}: {} is outside of {} stages and {} micro-batches", schedule.name,
        rank, to_string(action), schedule.num_stages(), schedule.num_micro_batches);
  const int owner = schedule.rank_of_stage[static_cast<std::size_t>(stage)];
  check(owner == rank, "schedule {}: rank {}: {} belongs to rank {}, which has stage {}",
        schedule.name, rank, to_string(action), owner, stage);
  const auto place =
      static_cast<std::size_t>(stage) * static_cast<std::size_t>(schedule.num_micro_batches) +
      static_cast<std::size_t>(micro_batch);
  check(++counts[place][static_cast<std::size_t>(kind)] == 1,
        "schedule {}: rank {}: {} appears twice", schedule.name, rank, to_string(action));
}

void require_once(const PipelineSchedule& schedule, int stage, int micro_batch,
                  const Counts& counts) {
  const int rank = schedule.rank_of_stage[static_cast<std::size_t>(stage)];
  const auto [forward, backward, input, weight] = counts;
  const auto name = [&](Action::Kind kind) { return to_string(Action{kind, stage, micro_batch}); };
  check(forward == 1, "schedule {}: rank {}: {} is missing", schedule.name, rank,
        name(Action::Kind::kForward));
  if (backward == 1) {
    check(input + weight == 0, "schedule {}: rank {}: {} appears as a whole and in halves",
          schedule.name, rank, name(Action::Kind::kBackward));
    return;
  }
  check(input + weight > 0, "schedule {}: rank {}: {} is missing", schedule.name, rank,
        name(Action::Kind::kBackward));
  check(input == 1, "schedule {}: rank {}: {} is missing", schedule.name, rank,
        name(Action::Kind::kInputGradient));
  check(weight == 1, "schedule {}: rank {}: {} is missing", schedule.name, rank,
        name(Action::Kind::kWeightGradient));
}

// The action of the schedule that stands for `wanted`: the same action, or a whole backward pass in
// place of the half that makes the input gradient, or that half in place of a whole pass.
Action as_planned(const std::vector<Action>& actions, Action wanted) {
  const auto makes = [&](const Action& action) {
    return action.stage == wanted.stage && action.micro_batch == wanted.micro_batch &&
           (action.kind == wanted.kind ||
            (action.makes_input_gradient() && wanted.makes_input_gradient()));
  };
  return *std::find_if(actions.begin(), actions.end(), makes);
}

[[noreturn]] void fail_of_waiting(const PipelineSchedule& schedule, const ScheduleClock& clock) {
  for (std::size_t rank = 0; rank < schedule.ranks.size(); ++rank) {
    const std::size_t at = clock.position(static_cast<int>(rank));
    if (at == schedule.ranks[rank].size()) continue;
    const Action action = schedule.ranks[rank][at];
    const Action missing = *clock.missing(action);
    const auto other =
        static_cast<std::size_t>(schedule.rank_of_stage[static_cast<std::size_t>(missing.stage)]);
    const Action needed = as_planned(schedule.ranks[other], missing);
    if (other == rank) {
      fail(ErrorCode::kInvalid, "schedule {}: rank {}: {} needs {}, which comes later on that rank",
           schedule.name, rank, to_string(action), to_string(needed));
    }
    const Action stuck = schedule.ranks[other][clock.position(static_cast<int>(other))];
    fail(ErrorCode::kInvalid,
         "schedule {}: deadlock: rank {}: {} (action {} of {}) needs {} of rank {}, which would "
         "wait "
         "forever at {}",
         schedule.name, rank, to_string(action), at, schedule.ranks[rank].size(), to_string(needed),
         other, to_string(stuck));
  }
  fail(ErrorCode::kInvalid, "schedule {}: a rank would wait forever", schedule.name);
}

}  // namespace

void validate(const PipelineSchedule& schedule) {
  require_layout(schedule);
  std::vector<Counts> counts(static_cast<std::size_t>(schedule.num_stages()) *
                             static_cast<std::size_t>(schedule.num_micro_batches));
  for (std::size_t rank = 0; rank < schedule.ranks.size(); ++rank) {
    for (const Action& action : schedule.ranks[rank])
      count_action(schedule, static_cast<int>(rank), action, counts);
  }
  for (int stage = 0; stage < schedule.num_stages(); ++stage) {
    for (int i = 0; i < schedule.num_micro_batches; ++i) {
      require_once(schedule, stage, i,
                   counts[static_cast<std::size_t>(stage) *
                              static_cast<std::size_t>(schedule.num_micro_batches) +
                          static_cast<std::size_t>(i)]);
    }
  }
  ScheduleClock clock(schedule.rank_of_stage, schedule.num_micro_batches,
                      equal_costs(schedule.num_stages()));
  if (!clock.run(schedule.ranks)) fail_of_waiting(schedule, clock);
}

}  // namespace paceline::pipeline
