#pragma once

// Messages that contain the shape and type of their tensor.
//
// Thread safety: that of ProcessGroup.

#include <cstdint>
#include <memory>
#include <utility>

#include <ATen/core/Tensor.h>

#include "paceline/engine/collectives/group/group_options.h"
#include "paceline/engine/collectives/group/process_group.h"

namespace paceline {

// Send a tensor whose shape and type the receiver does not know: the message contains both. The
// tensor must be on the CPU and have at most 8 dimensions; for isend_with_shape() it must also be
// contiguous. recv() with a tensor of the same shape can also receive such a message.
void send_with_shape(GroupRef group, const at::Tensor& tensor, int peer, std::uint32_t tag = 0,
                     const CollectiveOptions& options = {});
WorkPtr isend_with_shape(GroupRef group, const at::Tensor& tensor, int peer, std::uint32_t tag = 0,
                         const CollectiveOptions& options = {});
struct ReceivedTensor {
  at::Tensor tensor;  // contiguous, on the CPU
  int source = -1;
};
// `peer` may be kAnySource. Error(kInvalid) for a message without a shape.
ReceivedTensor recv_with_shape(GroupRef group, int peer, std::uint32_t tag = 0,
                               const CollectiveOptions& options = {});
// A recv_with_shape() that has been started.
class PendingTensor {
 public:
  PendingTensor(WorkPtr work, std::shared_ptr<const at::Tensor> tensor)
      : work_(std::move(work)), tensor_(std::move(tensor)) {}
  // Waits for the tensor as Work::wait() does.
  ReceivedTensor wait() const {
    work_->wait();
    return {*tensor_, work_->source_rank()};
  }
  const WorkPtr& work() const { return work_; }

 private:
  WorkPtr work_;
  std::shared_ptr<const at::Tensor> tensor_;  // shared with the receive until it has ended
};
PendingTensor irecv_with_shape(GroupRef group, int peer, std::uint32_t tag = 0,
                               const CollectiveOptions& options = {});

}  // namespace paceline
