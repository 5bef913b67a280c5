#pragma once

// Training in which ranks have different numbers of inputs, with the semantics of PyTorch's join():
//
//   paceline::join(model, &optimizer, [&] {
//     while (auto batch = next_batch()) {
//       loss_of(model->forward(batch->data), batch->target).backward();
//       optimizer.step();
//       optimizer.zero_grad();
//     }
//   });
//
// A rank that has no more inputs keeps taking part in the other ranks' passes and steps, with
// gradients of zero, until the inputs of the last rank have ended; then all ranks have the same
// model. If the numbers of inputs are known in advance, as in DataLoader, batches with the weight 0
// cost less, because the ranks need not announce each pass and step to each other.
//
// If a step consists of more than the optimizer's step (clipping before it, a schedule or an
// average of the weights after it, a GradScaler around it), or has several passes that average
// gradients, ranks without inputs must do all of that too:
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
#include "paceline/training/parallel/data_parallel_options.h"
#include "paceline/training/parallel/distributed_data_parallel.h"

namespace torch::optim {
class Optimizer;
}

namespace paceline {

// A step of the loop that join() runs. Ranks without inputs take it too, so it may be collective.
// Outside of join() it simply calls `take`.
class JoinedStep {
 public:
  explicit JoinedStep(std::function<void()> take) : take_(std::move(take)) {}
  void operator()() {
    if (before_) before_();
    take_();
  }
  // For join(): `before` is called before each step; an empty function removes it.
  void set_before(std::function<void()> before) { before_ = std::move(before); }

 private:
  const std::function<void()> take_;
  std::function<void()> before_;
};

namespace detail {

void join(DataParallelState& model, JoinedStep& step, const std::function<void()>& loop,
          const detail::JoinRules& rules);
void join(DataParallelState& model, optim::Optimizer* optimizer, const std::function<void()>& loop,
          const detail::JoinRules& rules);

}  // namespace detail

// Collective: runs `loop`. An average divides by the number of all ranks or, without
// `divide_by_initial_world_size`, by the number of ranks with inputs. With
// `throw_on_early_termination` every rank throws Error(kInvalid) if some ranks' inputs end early.
// Every forward pass of `loop` that records gradients must be followed by its backward pass. A rank
// without inputs takes its steps with the averaged gradients. If `loop` contains other collectives,
// including SyncBatchNorm's, set throw_on_early_termination. Error(kInvalid) with logical shards,
// and when a communication hook is used with divide_by_initial_world_size = false; kUnsupported
// when the parameters are divided among hosts or devices. Evaluate after join(): in `loop`, forward
// passes without gradients do not get rank 0's buffers.
template <class Module>
void join(DistributedDataParallel<Module>& model, JoinedStep& step,
          const std::function<void()>& loop, bool divide_by_initial_world_size = true,
          bool throw_on_early_termination = false) {
  detail::join(model.state(), step, loop,
               {divide_by_initial_world_size, throw_on_early_termination});
}
// As above, for steps that consist only of the optimizer's step; the optimizer may be sharded.
// Null: a rank without inputs takes no steps, and gets the parameters and buffers of the last rank
// with inputs at the end.
template <class Module>
void join(DistributedDataParallel<Module>& model, optim::Optimizer* optimizer,
          const std::function<void()>& loop, bool divide_by_initial_world_size = true,
          bool throw_on_early_termination = false) {
  detail::join(model.state(), optimizer, loop,
               {divide_by_initial_world_size, throw_on_early_termination});
}
// As above, for an optimizer of LibTorch, as in PyTorch, or null. A rank without inputs takes no
// steps, so its optimizer's state, such as momenta, does not change. Use a JoinedStep to take steps
// on every rank.
template <class Module, class NoOptimizer>
  requires std::is_convertible_v<NoOptimizer, torch::optim::Optimizer*>
void join(DistributedDataParallel<Module>& model, NoOptimizer /*optimizer*/,
          const std::function<void()>& loop, bool divide_by_initial_world_size = true,
          bool throw_on_early_termination = false) {
  detail::join(model.state(), static_cast<optim::Optimizer*>(nullptr), loop,
               {divide_by_initial_world_size, throw_on_early_termination});
}

}  // namespace paceline
