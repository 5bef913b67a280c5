#pragma once

// Converts a TensorCall (tensor_call.h) to the form that the engine carries out: buffers and counts
// of elements, of tensors whose memory the engine can use.
//
// Thread safety: values.

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "paceline/engine/collectives/call.h"
#include "paceline/engine/collectives/group/process_group.h"
#include "paceline/training/device/device_memory.h"
#include "paceline/training/tensor/tensor_call.h"

namespace paceline {

// The call in the engine's form, with all data to which it points. Error(kInvalid) for tensors that
// the operation cannot use.
//
// If the tensors are on a device and the group has no backend for it, the call is on copies in host
// memory. A collective copies by itself (CallOptions::order); for a message the caller must copy
// (TensorCopies::fetch(), deliver()).
struct PreparedCall {
  std::shared_ptr<TensorCopies> copies;  // null: the call is on the tensors themselves
  Call call;
  CallOptions options;
  std::vector<std::size_t> counts, receive_counts;
  std::vector<ConstBuffer> inputs;
  std::vector<Buffer> outputs;

  PreparedCall(const ProcessGroup& group, const TensorCall& asked);
  PreparedCall(const PreparedCall&) = delete;
  PreparedCall& operator=(const PreparedCall&) = delete;

 private:
  void prepare(const ProcessGroup& group, const TensorCall& asked);
  // Sets the shape that ranks compare.
  void set_shape(const ProcessGroup& group, const TensorCall& asked);
};

// A TensorCall on tensors that the engine can use, which are copies where necessary; copy_back()
// then fills the original outputs.
class FittedCall {
 public:
  FittedCall(const ProcessGroup& group, const TensorCall& call);
  const TensorCall& call() const { return call_; }
  void copy_back() const;

 private:
  at::Tensor fitting_output(const at::Tensor& tensor);
  at::Tensor fitting_input(const at::Tensor& tensor, const at::Tensor& output) const;

  const ProcessGroup& group_;
  TensorCall call_;
  std::vector<std::pair<at::Tensor, at::Tensor>> copies_;
};

}  // namespace paceline
