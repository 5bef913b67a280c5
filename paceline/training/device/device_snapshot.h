#pragma once

// DeviceSnapshot: copies of many tensors of a CUDA device in pinned host memory, as they are when
// the copies are ordered, for instance for a checkpoint that a thread writes while the training
// goes on.
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
  // Queues the copy of a dense tensor on a stream of its own, after the work that the current
  // stream has, and returns it. The current stream waits for the copy, so later work does not
  // change what is copied.
  at::Tensor copy_of(const at::Tensor& tensor);
  // Waits until the copies have their values. Error(kTimeout), which begins with `what`, at the
  // deadline.
  void wait(Deadline deadline, const std::string& what) const;
  // Copies the values in the copies to the tensors.
  void copy_back() const;

 private:
  struct Copy {
    at::Tensor of_device, on_host;
    StreamEvent end;
  };
  std::vector<Copy> copies_;
};

}  // namespace paceline
