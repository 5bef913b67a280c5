#pragma once

// Collectives with a backward pass, for models that are divided among ranks (tensor and sequence
// parallelism). A tensor is *replicated* (the same on every rank, as outside of a parallel region)
// or *own* (each rank has its own gradient). The table shows which kind each function takes
// ("from") and returns ("to"); only the functions that enter or leave a parallel region change the
// kind. The backward pass of each function is again one of these functions, so gradients of any
// order are correct.
//
//   function                 forward             backward            from         to
//   all_reduce_sum           all-reduce          all-reduce          own          own
//   all_gather_autograd      all-gather          reduce-scatter      own          own
//   reduce_scatter_autograd  reduce-scatter      all-gather          own          own
//   all_to_all_autograd      all-to-all          all-to-all          own          own
//
// The gradient of a replicated tensor must be the same on every rank; the gradient of an own tensor
// is the gradient of the sum of all ranks' losses. Sums are computed in the engine's fixed order.
//
// All ranks of the group must call the functions in the same order, and every rank's backward pass
// must reach them in the same order. Parts have equal sizes: if the number of ranks does not divide
// a dimension, Error(kInvalid) names the rank, the dimension and the shape. Different shapes on two
// ranks are an error as in every collective. In a group of one rank nothing is communicated.
// Results share no memory with other ranks; they may share it with their input if nothing is
// communicated.
//
// Thread safety: same as ProcessGroup. The autograd graph keeps the group alive.

#include <cstdint>
#include <memory>

#include <ATen/core/Tensor.h>

#include "paceline/engine/collectives/group/process_group.h"

namespace paceline {

using GroupPtr = std::shared_ptr<ProcessGroup>;

at::Tensor all_reduce_sum(const GroupPtr& group, const at::Tensor& input);
// `dim`, here and below: negative dimensions count from the end.
at::Tensor all_gather_autograd(const GroupPtr& group, const at::Tensor& input, std::int64_t dim);
at::Tensor reduce_scatter_autograd(const GroupPtr& group, const at::Tensor& input,
                                   std::int64_t dim);
// Sends part r along `split_dim` to rank r and concatenates the received parts along `concat_dim`,
// in rank order.
at::Tensor all_to_all_autograd(const GroupPtr& group, const at::Tensor& input,
                               std::int64_t split_dim, std::int64_t concat_dim);

}  // namespace paceline
