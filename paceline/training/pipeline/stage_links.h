#pragma once

// The tensors that stages give each other: forward the outputs of a micro-batch, backward their
// gradients. A list goes ahead that says how each tensor comes: lent, where ranks of one host can
// (loans.h), or as a message that brings shape and type. Between stages of one rank they stay where
// they are.
//
// Sends do not wait; finish() does. Thread safety: none.

#include <map>
#include <memory>
#include <tuple>
#include <vector>

#include <ATen/core/Tensor.h>

#include "paceline/engine/collectives/group/process_group.h"
#include "paceline/planning/schedules/plan.h"
#include "paceline/training/pipeline/loans.h"

namespace paceline {

class StageLinks {
 public:
  using Tensors = std::vector<at::Tensor>;
  enum class Direction { kForward, kBackward };

  // Collective. Requires: the plan outlives it.
  StageLinks(std::shared_ptr<ProcessGroup> group, const pipeline::Plan& plan);

  // From `stage` to the one after it (kForward) or before it (kBackward). Undefined gradients
  // arrive as such. Error(kInvalid) for another number of tensors than before.
  void send(int stage, int micro_batch, Direction direction, const Tensors& tensors);
  // What the stage before (kForward) or after (kBackward) has sent to `stage`. It must not be
  // written to.
  Tensors receive(int stage, int micro_batch, Direction direction);
  // All ranks call it when all has been received: waits until what this rank has given is its own
  // again.
  void finish();

 private:
  int rank_of(int stage) const { return plan_.rank_of_stage[static_cast<std::size_t>(stage)]; }
  std::uint32_t tag(int from, int micro_batch, Direction direction) const;
  void drop_finished_sends();

  const std::shared_ptr<ProcessGroup> group_;
  const pipeline::Plan& plan_;
  Loans loans_;
  std::map<int, std::size_t> counts_;  // of tensors, by the stage that gives them
  std::map<std::tuple<int, int, Direction>, Tensors> own_;
  std::vector<WorkPtr> sends_;
};

}  // namespace paceline
