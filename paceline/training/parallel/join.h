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
// A rank whose inputs have ended keeps taking part in the other ranks' passes and steps, with
// gradients of zero, until the last rank's inputs have ended; then all ranks have the same model.
// If the numbers of inputs are known in advance, as they are to DataLoader, batches without weight
// are cheaper: they need no announcements.
//
// If a step is more than the optimizer's (clipping before it, a schedule or an average of the
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

// A step of the loop that join() runs; ranks without inputs take it too. It may be collective,
// because all ranks take it together. Outside of join() it just runs.
class JoinedStep {
 public:
  explicit JoinedStep(std::function<void()> take) : take_(std::move(take)) {}
  void operator()() {
    if (before_) before_();
    take_();
  }
  // For join(): `before` is called before each step; an empty function ends this.
  void set_before(std::function<void()> before) { before_ = std::move(before); }

 private:
  const std::function<void()> take_;
  std::function<void()> before_;
};

// Collective: runs `loop`. Every forward pass of `loop` that records gradients is followed by its
// backward pass. A rank without inputs takes its steps with the averages as gradients. Other
// collectives in `loop`, including SyncBatchNorm's, need throw_on_early_termination.
// Error(kInvalid) with logical shards, and when a communication hook is used with
// divide_by_initial_world_size = false. Evaluate after join(): in `loop`, forward passes without
// gradients do not get rank 0's buffers.
void join(DataParallelState& model, JoinedStep& step, const std::function<void()>& loop,
          const JoinOptions& options = {});
// As above, if a step is the optimizer's and nothing else; the optimizer may be sharded. Null: a
// rank without inputs takes no steps, and only gets the parameters and buffers of the others in the
// end.
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
// As above, for an optimizer of LibTorch, as in PyTorch, or null. A rank without inputs takes no
// steps, so its optimizer's state, such as momenta, stays as it was. Use a JoinedStep to take steps
// on every rank.
template <class Module, class NoOptimizer>
  requires std::is_convertible_v<NoOptimizer, torch::optim::Optimizer*>
void join(DistributedDataParallel<Module>& model, NoOptimizer /*optimizer*/,
          const std::function<void()>& loop, const JoinOptions& options = {}) {
  join(model.state(), static_cast<optim::Optimizer*>(nullptr), loop, options);
}

}  // namespace paceline
