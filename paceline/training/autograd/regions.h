#pragma once

// Collectives with a backward pass, for the borders of a parallel region, in which each rank holds
// its part of a tensor; and point-to-point messages with a backward pass. Terms, errors and thread
// safety are those of differentiable_collectives.h.
//
//   function                 forward             backward            from         to
//   copy_to_region           -                   all-reduce          replicated   own
//   reduce_from_region       all-reduce          -                   own          replicated
//   scatter_to_region        this rank's part    all-gather          replicated   own
//   gather_from_region       all-gather          this rank's part    own          replicated

#include <cstdint>

#include <ATen/core/Tensor.h>

#include "paceline/training/autograd/differentiable_collectives.h"

namespace paceline {

at::Tensor copy_to_region(const GroupPtr& group, const at::Tensor& input);
at::Tensor reduce_from_region(const GroupPtr& group, const at::Tensor& input);
// Negative dimensions count from the end.
at::Tensor scatter_to_region(const GroupPtr& group, const at::Tensor& input, std::int64_t dim);
at::Tensor gather_from_region(const GroupPtr& group, const at::Tensor& input, std::int64_t dim);

// Messages with a backward pass: the receiver of a tensor sends its gradient back. Each message
// carries the tensor's shape and type.
//
//   on rank 0:  auto sent = send_with_gradient(group, hidden, 1);
//               sent.backward();                  // waits for the gradient from rank 1
//   on rank 1:  auto hidden = recv_with_gradient(group, 0);
//               loss_of(hidden).backward();       // sends the gradient to rank 0
//
// Tensors are on the CPU. Messages and gradients are matched by (peer, tag) in order of sending. If
// several are under way at once, give each its own tag, or run their backward passes in the same
// order on both ranks. If a gradient's shape or type differs from the tensor's, the rank that sent
// the tensor gets Error(kInvalid).
//
// send_with_gradient() returns a scalar with the value 0: call backward() on it, or add it to this
// rank's loss.
at::Tensor send_with_gradient(const GroupPtr& group, const at::Tensor& tensor, int peer,
                              std::uint32_t tag = 0);
at::Tensor recv_with_gradient(const GroupPtr& group, int peer, std::uint32_t tag = 0);

}  // namespace paceline
