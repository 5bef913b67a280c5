#pragma once

// Collectives with a backward pass, for models of which each rank has a part (tensor and sequence
// parallelism). Between "replicated" (the same tensor on every rank, as outside of a parallel
// region) and "own" (each rank has a tensor of its own) there are these ways; each one's backward
// pass is the way back, so gradients are right of any order.
//
//   function                 forward             backward            from         to
//   copy_to_region           -                   all-reduce          replicated   own
//   reduce_from_region       all-reduce          -                   own          replicated
//   scatter_to_region        this rank's part    all-gather          replicated   own
//   gather_from_region       all-gather          this rank's part    own          replicated
//   all_reduce_sum           all-reduce          all-reduce          own          own
//   all_gather_own           all-gather          reduce-scatter      own          own
//   reduce_scatter_own       reduce-scatter      all-gather          own          own
//   all_to_all_own           all-to-all          all-to-all          own          own
//
// A gradient of what is replicated must itself be the same on every rank; that of "own" is of the
// sum of all ranks' losses. Sums have the engine's fixed order (kernels/reduce.h).
//
// All ranks of the group call them in the same order, and every rank's backward pass must reach
// them in the same order. Parts are equal: Error(kInvalid) names the rank, the dimension and the
// shape where it does not divide. Ranks with other shapes are found as in every collective. In a
// group of one nothing moves. Results share no memory with other ranks; they may share it with
// their input where nothing moves.
//
// Thread safety: that of ProcessGroup. The graph keeps the group alive.

#include <cstdint>
#include <memory>

#include <ATen/core/Tensor.h>

#include "paceline/engine/collectives/group/process_group.h"

namespace paceline {

using GroupPtr = std::shared_ptr<ProcessGroup>;

at::Tensor copy_to_region(const GroupPtr& group, const at::Tensor& input);
at::Tensor reduce_from_region(const GroupPtr& group, const at::Tensor& input);
// Dimensions count from the end where negative.
at::Tensor scatter_to_region(const GroupPtr& group, const at::Tensor& input, std::int64_t dim);
at::Tensor gather_from_region(const GroupPtr& group, const at::Tensor& input, std::int64_t dim);

at::Tensor all_reduce_sum(const GroupPtr& group, const at::Tensor& input);
at::Tensor all_gather_own(const GroupPtr& group, const at::Tensor& input, std::int64_t dim);
at::Tensor reduce_scatter_own(const GroupPtr& group, const at::Tensor& input, std::int64_t dim);
// Part r along `split_dim` goes to rank r; what comes is put together along `concat_dim`, in rank
// order.
at::Tensor all_to_all_own(const GroupPtr& group, const at::Tensor& input, std::int64_t split_dim,
                          std::int64_t concat_dim);

// A tensor sent to another rank, with a backward pass: the gradient comes back the same way. Shape
// and type travel with the message.
//
//   on rank 0:  auto sent = send_with_gradient(group, hidden, 1);
//               sent.backward();                  // waits for rank 1's gradient of it
//   on rank 1:  auto hidden = recv_with_gradient(group, 0);
//               loss_of(hidden).backward();       // sends it
//
// Tensors are on the CPU. Messages are matched by (peer, tag) in order of sending, gradients as
// well: where several are under way, give them tags of their own, or let their backward passes run
// in the same order on both ranks. Error(kInvalid) on the sending rank for a gradient of another
// shape or type.
//
// Thread safety: that of ProcessGroup. The graph keeps the group alive.

// A scalar of value 0: call backward() on it, or add it to this rank's loss.
at::Tensor send_with_gradient(const GroupPtr& group, const at::Tensor& tensor, int peer,
                              std::uint32_t tag = 0);
at::Tensor recv_with_gradient(const GroupPtr& group, int peer, std::uint32_t tag = 0);

}  // namespace paceline
