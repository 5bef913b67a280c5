#pragma once

// Memory of CUDA devices, and copies of it in pinned host memory.

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "paceline/engine/collectives/device_order.h"
#include "paceline/engine/collectives/group/process_group.h"
#include "paceline/engine/core/deadline.h"
#include "paceline/training/device/streams.h"

namespace paceline {

// Returns a tensor of `count` zeros on a CUDA device. If the device has no memory for it, aborts
// the group, because the other ranks would wait for this one: every rank gets an error that names
// the device, the purpose of the memory (`what`) and the remedies (`cure`); it is Error(kSystem)
// on this rank. Thread safety: none.
at::Tensor zeros_on_device(ProcessGroup& group, std::int64_t count, at::ScalarType type,
                           c10::Device device, const std::string& what, const std::string& cure);

// In a group without a CUDA backend, collectives of CUDA tensors work on copies in pinned host
// memory.
//
// The copies are made on side streams. A copy to the host begins after the work that was queued on
// the calling thread's stream before the collective; the thread that carries out the collective
// waits for the copy. A copy to the device begins when the collective has ended. When a thread
// waits for the collective, its stream waits for the copy to the device. So neither the calling
// thread nor its stream waits before it needs the result.
//
// Thread safety: one thread adds the tensors; afterwards another thread may call the functions of
// HostCopies.
class TensorCopies : public HostCopies {
 public:
  // `device`: the device of all tensors. `what` names the call in errors.
  TensorCopies(c10::Device device, std::string what);

  // Returns the copy of a dense tensor, and the same copy when called again with the same tensor.
  // The collective reads the copy if `is_read`, and writes it if `is_written`.
  at::Tensor copy_of(const at::Tensor& tensor, bool is_read, bool is_written);
  // Queues the copies to the host. Call it once, after copy_of().
  void begin();

  void* ready() const override { return order_->ready(); }
  void wait_for(void* event) const override { order_->wait_for(event); }
  void fetch(Deadline deadline) const override;
  DeviceEvent deliver() const override;
  void settle(Deadline deadline) const override;
  // Keeps the tensors until the copies to the device have ended; for calls without settle().
  static void keep(const std::shared_ptr<TensorCopies>& copies);

 private:
  struct Copy {
    at::Tensor of_device, on_host;
    bool is_read = false, is_written = false;
  };

  const c10::Device device_;
  const std::string what_;
  const std::shared_ptr<const DeviceOrder> order_;
  const StreamEvent begin_;  // copies begin after this: the end of the work queued by the caller
  std::vector<Copy> copies_;
  StreamEvent fetched_;
  mutable StreamEvent delivered_;
};

// Copies of many tensors of a CUDA device in pinned host memory. The copies have the values that
// the tensors had when copy_of() was called, for instance for a checkpoint that a thread writes
// while the training goes on.
//
// Thread safety: none.
class DeviceSnapshot {
 public:
  // Queues a copy of a dense tensor on a side stream, after the work that is queued on the current
  // stream, and returns the copy. The current stream waits for the copying, so later work cannot
  // change the values that are copied.
  at::Tensor copy_of(const at::Tensor& tensor);
  // Waits until the copies have their values. At the deadline, throws Error(kTimeout) with a text
  // that begins with `what`.
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
