#include "paceline/planning/schedules/validate.h"

#include <algorithm>
#include <array>

#include "paceline/engine/core/check.h"
#include "paceline/planning/schedules/plan_clock.h"

namespace paceline::pipeline {
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

using Counts = std::array<int, 4>;  // by kind

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
  check(++counts[place][static_cast<std::size_t>(kind)] == 1, "plan {}: rank {}: {} comes twice",
        plan.name, rank, to_string(action));
}

void require_once(const Plan& plan, int stage, int micro_batch, const Counts& counts) {
  const int rank = plan.rank_of_stage[static_cast<std::size_t>(stage)];
  const auto [forward, backward, input, weight] = counts;
  const auto name = [&](ActionKind kind) { return to_string(Action{kind, stage, micro_batch}); };
  check(forward == 1, "plan {}: rank {}: {} is missing", plan.name, rank,
        name(ActionKind::kForward));
  if (backward == 1) {
    check(input + weight == 0, "plan {}: rank {}: {} comes as a whole and in halves", plan.name,
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

// The kind that the plan has for what `wanted` makes.
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
