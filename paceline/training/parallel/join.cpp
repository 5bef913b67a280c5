#include "paceline/training/parallel/join.h"

#include "paceline/engine/core/check.h"
#include "paceline/engine/core/log.h"
#include "paceline/training/optim/optimizer_core.h"
#include "paceline/training/parallel/data_parallel_state.h"

namespace paceline {
namespace {

using Doing = UnevenInputs::Doing;

// How join() takes part in the loop's steps: `take` takes a step, and `set_before` sets a function
// that is called before each step. `take` is empty if join() does not know the loop's steps.
// `are_all_announced`: even a step in which the optimizer does nothing is announced.
struct Stepping {
  bool are_all_announced = false;
  std::function<void()> take;
  std::function<void(std::function<void()> before)> set_before;
};

// Announces the model's passes until the end of the scope.
class Joining {
 public:
  Joining(DataParallelState& model, UnevenInputs& inputs) : model_(model) {
    model_.set_uneven_inputs(&inputs);
  }
  ~Joining() { model_.set_uneven_inputs(nullptr); }
  Joining(const Joining&) = delete;
  Joining& operator=(const Joining&) = delete;

 private:
  DataParallelState& model_;
};

// Announces the loop's steps until the end of the scope.
class AnnouncedSteps {
 public:
  AnnouncedSteps(const Stepping& stepping, UnevenInputs& inputs) : stepping_(stepping) {
    stepping_.set_before([&inputs] { inputs.announce(Doing::kStep); });
  }
  ~AnnouncedSteps() { stepping_.set_before({}); }
  AnnouncedSteps(const AnnouncedSteps&) = delete;
  AnnouncedSteps& operator=(const AnnouncedSteps&) = delete;

 private:
  const Stepping& stepping_;
};

// Takes part in the actions of the ranks with inputs, until no rank has inputs. Returns the rank
// whose inputs ended last.
int follow(DataParallelState& model, const Stepping& stepping, UnevenInputs& inputs) {
  constexpr int kManyPasses = 1000;
  for (int num_passes = 0;;) {
    const auto others = inputs.announce(Doing::kNothingMore);
    const bool begins_step = others.begins_step || !stepping.are_all_announced;
    if (others.num_active == 0) {
      // The loop would have dropped these gradients after its step, or before its next pass.
      if (num_passes > 0 && stepping.take && begins_step) model.reducer().forget_gradients();
      return others.first_active;
    }
    if (others.doing == Doing::kAveragingPass) model.pass_without_inputs(others, begins_step);
    if (others.doing == Doing::kStep) stepping.take();
    if (others.doing == Doing::kAveragingPass && ++num_passes == kManyPasses) {
      log::warning(
          fmt::format("join: this rank's inputs ended {} passes ago, but other ranks still have "
                      "inputs: divide the inputs more evenly",
                      kManyPasses));
    }
  }
}

void join_with(DataParallelState& model, const Stepping& stepping,
               const std::function<void()>& loop, const detail::JoinRules& rules) {
  const int rank = model.group().rank();
  const Reducer& reducer = model.reducer();
  check(!reducer.steps().has_shards(),
        "rank {}: join: with logical shards every rank has the same number of passes", rank);
  check(rules.divide_by_initial_world_size || !reducer.has_hook(),
        "rank {}: join: a communication hook divides by the number of all ranks: leave "
        "divide_by_initial_world_size as it is",
        rank);
  if (model.divides_parameters()) {
    fail(ErrorCode::kUnsupported,
         "rank {}: join: the parameters are divided among hosts or devices, so every forward pass "
         "needs all ranks: use stage 2 of fully_shard(), or the same number of inputs on each rank",
         rank);
  }
  UnevenInputs inputs(model.shared_group(), rules);
  int last = 0;
  {
    const Joining joining(model, inputs);
    {
      const AnnouncedSteps steps(stepping, inputs);
      loop();
    }
    last = follow(model, stepping, inputs);
  }
  model.take_model_of(last);
}

}  // namespace

void detail::join(DataParallelState& model, JoinedStep& step, const std::function<void()>& loop,
                  const JoinRules& rules) {
  const Stepping stepping{
      true, [&] { step(); },
      [&](std::function<void()> before) { step.set_before(std::move(before)); }};
  join_with(model, stepping, loop, rules);
}

void detail::join(DataParallelState& model, optim::Optimizer* optimizer,
                  const std::function<void()>& loop, const JoinRules& rules) {
  Stepping stepping{false, {}, [](const std::function<void()>&) {}};
  if (optimizer != nullptr) {
    stepping = {false, [&] { optimizer->step(); },
                [&](std::function<void()> before) {
                  core_of(*optimizer).set_before_step(std::move(before));
                }};
  }
  join_with(model, stepping, loop, rules);
}

}  // namespace paceline
