#pragma once

// Weights of a pipeline's ranks: tied weights, which several ranks have as copies, and a function
// that gathers the weights of the whole model.
//
// Thread safety: one thread at a time.

#include <map>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "paceline/engine/collectives/group/process_group.h"

namespace paceline {

// Parameters that several stages share, for instance GPT's embedding and its last layer: every rank
// whose stages use them has a copy. The copies begin with the values of the first of these ranks.
// In each step their gradients are added up in rank order before the optimizer's step, so the
// copies stay equal.
//
//   TiedWeights tied(group, stage->tied_weights());
//   ...
//   pipeline.step(batches, loss);
//   tied.add_gradients();
//   optimizer.step();
//
// Cost: an all-reduce of the tied gradients between the ranks that have copies. The bits are not
// those of a single process, which adds the gradients of both uses in another order.
class TiedWeights {
 public:
  // Collective over `group`, the group of the pipeline. `own`: this rank's copies, in the same
  // order on all ranks that have copies; empty: this rank has none. Error(kInvalid) when the
  // numbers of copies differ.
  TiedWeights(GroupRef group, std::vector<at::Tensor> own);

  // Adds up the gradients of the copies. Collective over the ranks that have copies; does nothing
  // on other ranks. A copy without a gradient counts as zeros, and gets a gradient.
  void add_gradients();

 private:
  std::shared_ptr<ProcessGroup> holders_;  // the ranks that have copies
  const std::vector<at::Tensor> own_;
};

// Collective over the pipeline's ranks: returns the weights of all ranks, on every rank. Several
// ranks may have a weight of the same name if its values are the same (a tied weight); otherwise
// Error(kInvalid) on every rank. Every rank needs memory for the whole model.
std::map<std::string, at::Tensor> gather_stages(GroupRef group,
                                                const std::map<std::string, at::Tensor>& own);

}  // namespace paceline
