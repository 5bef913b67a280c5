#pragma once

// DeviceSnapshot: copies of many tensors of a CUDA device in pinned host memory. The copies have
// the values that the tensors had when copy_of() was called, for instance for a checkpoint that a
// thread writes while the training goes on.
//
// Thread safety: none.

#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "paceline/engine/core/deadline.h"
#include "paceline/training/device/streams.h"

namespace paceline {

class DeviceSnapshot {
 public:
  // Queues a copy of a dense tensor on a side stream, after the work that is queued on the current
  // stream, and returns the copy. The current stream waits for it, so later work cannot change the
  // values that are copied.
  at::Tensor copy_of(const at::Tensor& tensor);
  // Waits until the copies have their values. Error(kTimeout), which begins with `what`, at the
  // deadline.
  void wait(Deadline deadline, const std::string& what) const;
  // Copies the values back from the copies to the tensors.
  void copy_back() const;

 private:
  struct Copy {
    at::Tensor of_device, on_host;
    StreamEvent end;
  };
  std::vector<Copy> copies_;
};

}  // namespace paceline
