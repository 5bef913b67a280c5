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
// A rank whose inputs have ended goes on to take part in what the others do, with gradients of
// zero, until the last one has ended; then all have the same model. Where the numbers are known
// before, as they are to DataLoader, batches without weight are cheaper: they need no
// announcements.

#include <functional>

#include "paceline/optim/optimizer.h"
#include "paceline/parallel/distributed_data_parallel.h"
#include "paceline/parallel/uneven_inputs.h"

namespace paceline {

// Collective. Every forward pass of `loop` that records gradients is followed by its backward pass.
// `optimizer`: takes its steps on every rank, also after the end of its inputs; may be sharded.
// Null: it is another, and a rank without inputs takes no steps; only its parameters and buffers
// become those of the others in the end. A rank without inputs steps with the averages as they are
// and the learning rates that it has: clip or change rates in `loop` only with `optimizer` null.
// Other collectives in `loop`, SyncBatchNorm's among them,
// need throw_on_early_termination. Error(kInvalid) with logical shards, and for an average over the
// ranks with inputs where a communication hook averages. Evaluate after it: in `loop`, forward
// passes without gradients do not get rank 0's buffers.
void join(DataParallelState& model, optim::Optimizer* optimizer, const std::function<void()>& loop,
          const JoinOptions& options = {});

template <class Module>
void join(DistributedDataParallel<Module>& model, optim::Optimizer* optimizer,
          const std::function<void()>& loop, const JoinOptions& options = {}) {
  join(model.state(), optimizer, loop, options);
}

}  // namespace paceline
