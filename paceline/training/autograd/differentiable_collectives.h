#pragma once

// Collectives and messages with a backward pass, for models of which each rank has a part (tensor
// and sequence parallelism). A tensor is *replicated* (the same on every rank, as outside of a
// parallel region) or *own* (different on each rank). The table shows which kind each function
// takes ("from") and returns ("to"). The backward pass of each function is again one of these
// functions, so gradients of any order are correct.
//
//   function                 forward             backward            from         to
//   copy_to_region           -                   all-reduce          replicated   own
//   reduce_from_region       all-reduce          -                   own          replicated
//   scatter_to_region        this rank's part    all-gather          replicated   own
//   gather_from_region       all-gather          this rank's part    own          replicated
//   all_reduce_sum           all-reduce          all-reduce          own          own
//   all_gather_autograd           all-gather          reduce-scatter      own          own
//   reduce_scatter_autograd       reduce-scatter      all-gather          own          own
//   all_to_all_autograd           all-to-all          all-to-all          own          own
//
// The gradient of a replicated tensor must be the same on every rank; the gradient of an own tensor
// is the gradient of the sum of all ranks' losses. Sums have the engine's fixed order
// (kernels/reduce.h).
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

at::Tensor copy_to_region(const GroupPtr& group, const at::Tensor& input);
at::Tensor reduce_from_region(const GroupPtr& group, const at::Tensor& input);
// Negative dimensions count from the end.
at::Tensor scatter_to_region(const GroupPtr& group, const at::Tensor& input, std::int64_t dim);
at::Tensor gather_from_region(const GroupPtr& group, const at::Tensor& input, std::int64_t dim);

at::Tensor all_reduce_sum(const GroupPtr& group, const at::Tensor& input);
at::Tensor all_gather_autograd(const GroupPtr& group, const at::Tensor& input, std::int64_t dim);
at::Tensor reduce_scatter_autograd(const GroupPtr& group, const at::Tensor& input,
                                   std::int64_t dim);
// Sends part r along `split_dim` to rank r and concatenates the received parts along `concat_dim`,
// in rank order.
at::Tensor all_to_all_autograd(const GroupPtr& group, const at::Tensor& input,
                               std::int64_t split_dim, std::int64_t concat_dim);

// Messages with a backward pass: the receiver of a tensor sends its gradient back. Each message
// carries the tensor's shape and type.
//
//   on rank 0:  auto sent = send_with_gradient(group, hidden, 1);
//               sent.backward();                  // waits for the gradient from rank 1
//   on rank 1:  auto hidden = recv_with_gradient(group, 0);
//               loss_of(hidden).backward();       // sends it
//
// Tensors are on the CPU. Messages and gradients are matched by (peer, tag) in order of sending. If
// several are under way at once, give each its own tag, or run their backward passes in the same
// order on both ranks. A gradient of another shape or type is Error(kInvalid) on the rank that sent
// the tensor.
//
// send_with_gradient() returns a scalar with the value 0: call backward() on it, or add it to this
// rank's loss.
at::Tensor send_with_gradient(const GroupPtr& group, const at::Tensor& tensor, int peer,
                              std::uint32_t tag = 0);
at::Tensor recv_with_gradient(const GroupPtr& group, int peer, std::uint32_t tag = 0);

}  // namespace paceline
