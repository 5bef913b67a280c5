#pragma once

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

#include <cstdint>

#include <ATen/core/Tensor.h>

#include "paceline/training/autograd/regions.h"

namespace paceline {

// A scalar of value 0: call backward() on it, or add it to this rank's loss.
at::Tensor send_with_gradient(const GroupPtr& group, const at::Tensor& tensor, int peer,
                              std::uint32_t tag = 0);
at::Tensor recv_with_gradient(const GroupPtr& group, int peer, std::uint32_t tag = 0);

}  // namespace paceline
