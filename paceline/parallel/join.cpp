#include "paceline/parallel/join.h"

#include "paceline/core/check.h"
#include "paceline/core/log.h"

namespace paceline {
namespace {

using Doing = UnevenInputs::Doing;

// Model and optimizer announce what they do while it lives.
class Joining {
 public:
  Joining(DataParallelState& model, optim::Optimizer* optimizer, UnevenInputs& inputs)
      : model_(model), optimizer_(optimizer) {
    model_.set_uneven_inputs(&inputs);
    if (optimizer_ != nullptr)
      optimizer_->set_before_step([&inputs] { inputs.announce(Doing::kStep); });
  }
  ~Joining() {
    model_.set_uneven_inputs(nullptr);
    if (optimizer_ != nullptr) optimizer_->set_before_step({});
  }
  Joining(const Joining&) = delete;
  Joining& operator=(const Joining&) = delete;

 private:
  DataParallelState& model_;
  optim::Optimizer* const optimizer_;
};

// Does what the ranks with inputs do, until none is left. Returns one that was left last.
int follow(DataParallelState& model, optim::Optimizer* optimizer, UnevenInputs& inputs) {
  constexpr int kManyPasses = 1000;
  for (int num_passes = 0;;) {
    const auto others = inputs.announce(Doing::kNothingMore);
    if (others.num_active == 0) return others.first_active;
    if (others.doing == Doing::kAveragingPass) model.pass_without_inputs(others);
    if (others.doing == Doing::kStep) optimizer->step();
    if (others.doing == Doing::kAveragingPass && ++num_passes == kManyPasses) {
      log::warning(
          fmt::format("join: this rank's inputs ended {} passes ago, and other ranks still have "
                      "some: divide them more evenly",
                      kManyPasses));
    }
  }
}

}  // namespace

void join(DataParallelState& model, optim::Optimizer* optimizer, const std::function<void()>& loop,
          const JoinOptions& options) {
  const int rank = model.group().rank();
  const Reducer& reducer = model.reducer();
  check(!reducer.has_shards(),
        "rank {}: join: with logical shards every rank has the same number of passes", rank);
  check(options.divide_by_initial_world_size || !reducer.has_hook(),
        "rank {}: join: a communication hook divides by the number of all ranks: leave "
        "divide_by_initial_world_size as it is",
        rank);
  UnevenInputs inputs(model.shared_group(), options);
  {
    const Joining joining(model, optimizer, inputs);
    loop();
  }
  const int last = follow(model, optimizer, inputs);
  model.set_uneven_inputs(nullptr);
  model.take_model_of(last);
}

}  // namespace paceline
