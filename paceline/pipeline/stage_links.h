#pragma once

// The tensors that stages give each other: forward the outputs of a micro-batch, backward their
// gradients. Between ranks they are messages that bring shape and type, between stages of one rank
// they stay where they are. How many tensors a stage gives is told once, with its first
// micro-batch.
//
// Sends do not wait; finish_sends() does. Thread safety: none.

#include <map>
#include <memory>
#include <tuple>
#include <vector>

#include <ATen/core/Tensor.h>

#include "paceline/collectives/group/process_group.h"
#include "paceline/schedules/plan.h"

namespace paceline {

class StageLinks {
 public:
  using Tensors = std::vector<at::Tensor>;
  enum class Direction { kForward, kBackward };

  // Requires: the plan outlives it.
  StageLinks(std::shared_ptr<ProcessGroup> group, const pipeline::Plan& plan);

  // From `stage` to the one after it (kForward) or before it (kBackward). Undefined gradients
  // arrive as such. Error(kInvalid) for another number of tensors than before.
  void send(int stage, int micro_batch, Direction direction, const Tensors& tensors);
  // What the stage before (kForward) or after (kBackward) has sent to `stage`; of gradients `count`
  // are expected, which the receiver knows.
  Tensors receive(int stage, int micro_batch, Direction direction, std::size_t count = 0);
  void finish_sends();

 private:
  int rank_of(int stage) const { return plan_.rank_of_stage[static_cast<std::size_t>(stage)]; }
  std::uint32_t tag(int from, int micro_batch, Direction direction) const;
  std::uint32_t tag_of_count(int from) const;
  void announce(int from, int peer, std::size_t count);
  std::size_t learn(int from, int peer);
  void drop_finished_sends();

  const std::shared_ptr<ProcessGroup> group_;
  const pipeline::Plan& plan_;
  std::map<int, std::size_t> counts_;  // of tensors, by the stage that gives them
  std::map<std::tuple<int, int, Direction>, Tensors> own_;
  std::vector<WorkPtr> sends_;
};

}  // namespace paceline
