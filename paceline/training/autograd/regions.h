#pragma once

// The collectives at the borders of a region in which each rank has its part of a tensor, with a
// backward pass, and messages with a backward pass. The words are those of
// differentiable_collectives.h; so are errors and thread safety.
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
