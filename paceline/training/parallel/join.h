#pragma once

// Training where ranks have different numbers of inputs, with the semantics of PyTorch's join():
//
//   paceline::join(model, &optimizer, [&] {
//     while (auto batch = next_batch()) {
//       loss_of(model->forward(batch->data), batch->target).backward();
//       optimizer.step();
//       optimizer.zero_grad();
//     }
//   });
//
// A rank whose inputs have ended keeps taking part in the others' passes and steps, with gradients
// of zero, until the last rank's inputs have ended; then all have the same model. Where the numbers
// are known before, as they are to DataLoader, batches without weight are cheaper: they need no
// announcements.
//
// Where a step is more than the optimizer's (clipping before it, a schedule or an average of the
// weights after it, a GradScaler around it), ranks without inputs must do all of that too:
//
//   paceline::JoinedStep step([&] {
//     optim::clip_grad_norm(model->parameters(), 1.0);
//     optimizer.step();
//     schedule.step();
//     optimizer.zero_grad();
//   });
//   paceline::join(model, step, [&] {
//     while (auto batch = next_batch()) {
//       loss_of(model->forward(batch->data), batch->target).backward();
//       step();
//     }
//   });

#include <functional>
#include <type_traits>
#include <utility>

#include "paceline/training/optim/optimizer.h"
#include "paceline/training/parallel/distributed_data_parallel.h"
#include "paceline/training/parallel/reducer/lockstep.h"

namespace torch::optim {
class Optimizer;
}

namespace paceline {

// A step of the loop that join() runs, taken on ranks without inputs too. It may be collective: all
// ranks take it together. Outside of join() it just runs.
class JoinedStep {
 public:
  explicit JoinedStep(std::function<void()> take) : take_(std::move(take)) {}
  void operator()() {
    if (before_) before_();
    take_();
  }
  // For join(): `before` is called before each step; empty: nothing is.
  void set_before(std::function<void()> before) { before_ = std::move(before); }

 private:
  const std::function<void()> take_;
  std::function<void()> before_;
};

// Collective. Every forward pass of `loop` that records gradients is followed by its backward pass.
// A rank without inputs steps with the averages, which are its gradients. Other collectives in
// `loop`, SyncBatchNorm's among them, need throw_on_early_termination. Error(kInvalid) with logical
// shards, and for an average over the ranks with inputs where a communication hook averages.
// Evaluate after it: in `loop`, forward passes without gradients do not get rank 0's buffers.
void join(DataParallelState& model, JoinedStep& step, const std::function<void()>& loop,
          const JoinOptions& options = {});
// The same where a step is `optimizer`'s and nothing else; it may be sharded. Null: a rank without
// inputs takes no steps; only its parameters and buffers become those of the others in the end.
void join(DataParallelState& model, optim::Optimizer* optimizer, const std::function<void()>& loop,
          const JoinOptions& options = {});

template <class Module>
void join(DistributedDataParallel<Module>& model, JoinedStep& step,
          const std::function<void()>& loop, const JoinOptions& options = {}) {
  join(model.state(), step, loop, options);
}
template <class Module>
void join(DistributedDataParallel<Module>& model, optim::Optimizer* optimizer,
          const std::function<void()>& loop, const JoinOptions& options = {}) {
  join(model.state(), optimizer, loop, options);
}
// With an optimizer of LibTorch's, as in PyTorch, or null: a rank without inputs takes no steps, so
// that its optimizer's state, such as momenta, stays as it was. A JoinedStep takes steps on every
// rank.
template <class Module, class NoOptimizer>
  requires std::is_convertible_v<NoOptimizer, torch::optim::Optimizer*>
void join(DistributedDataParallel<Module>& model, NoOptimizer /*optimizer*/,
          const std::function<void()>& loop, const JoinOptions& options = {}) {
  join(model.state(), static_cast<optim::Optimizer*>(nullptr), loop, options);
}

}  // namespace paceline
