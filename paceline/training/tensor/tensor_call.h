#pragma once

// A Call (engine/collectives/call.h) on tensors, and the functions that carry it out. The functions
// of collectives.h only fill in a TensorCall. So do the coalesced collectives below, which follow
// the rules of collectives.h.
//
// Thread safety: that of ProcessGroup.

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "paceline/engine/collectives/group/process_group.h"
#include "paceline/engine/collectives/op_traits.h"
#include "paceline/training/tensor/collectives.h"

namespace paceline {

struct TensorLists {
  std::vector<at::Tensor> inputs = {};  // empty: the call is in place
  std::vector<at::Tensor> outputs = {};
};

struct TensorCall {
  Op op = Op::kBarrier;
  at::Tensor input = {};
  at::Tensor output = {};  // equal to `input`: the call is in place
  ReduceOp reduce_op = ReduceOp::kSum;
  std::optional<std::uint32_t> divisor = {};
  int root = 0;
  int peer = 0;
  std::uint32_t tag = 0;
  // Like the fields of Call, but counted in rows: elements along dim 0.
  std::vector<std::int64_t> counts = {};
  std::vector<std::int64_t> receive_counts = {};
  bool with_shape = false;                // for a send: the message contains the input's sizes
  std::optional<TensorLists> lists = {};  // for a coalesced call: replaces input and output
  std::optional<std::chrono::milliseconds> timeout = {};  // at least 1 ms; empty: the group's
  std::shared_ptr<void> keep_alive = {};                  // CollectiveOptions::keep_alive
  // A description of the tensors' contents: the ranks compare it, and errors show it.
  std::string subject = {};
};

// Carries out the call, on copies of tensors that the engine cannot use.
void run(GroupRef group, const TensorCall& call);
// Starts the call. Error(kInvalid) for tensors that the engine cannot use.
WorkPtr start(GroupRef group, const TensorCall& call);

// One operation on many dense tensors of the same type and device, at the cost of a single call
// (ProcessGroup::all_reduce_coalesced). In place.
WorkPtr all_reduce_coalesced(GroupRef group, const std::vector<at::Tensor>& tensors,
                             ReduceOp op = ReduceOp::kSum, const CollectiveOptions& options = {});
WorkPtr broadcast_coalesced(GroupRef group, const std::vector<at::Tensor>& tensors, int root,
                            const CollectiveOptions& options = {});
// outputs[i] gets inputs[i] of all ranks; in reduce_scatter_coalesced() it gets this rank's part of
// their reduction.
WorkPtr all_gather_coalesced(GroupRef group, const std::vector<at::Tensor>& outputs,
                             const std::vector<at::Tensor>& inputs,
                             const CollectiveOptions& options = {});
WorkPtr reduce_scatter_coalesced(GroupRef group, const std::vector<at::Tensor>& outputs,
                                 const std::vector<at::Tensor>& inputs,
                                 ReduceOp op = ReduceOp::kSum,
                                 const CollectiveOptions& options = {});

}  // namespace paceline
