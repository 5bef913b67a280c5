#pragma once

// Collectives on many tensors at once, with the rules of collectives.h.
//
// Thread safety: that of ProcessGroup.

#include <vector>

#include <ATen/core/Tensor.h>

#include "paceline/training/tensor/collectives.h"

namespace paceline {

// One operation on many dense CPU tensors of the same type, at the cost of a single call
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
