#pragma once

// Collectives on tensors, with the names and semantics of torch.distributed. Tensors need not be
// contiguous: dense tensors (channels_last, transposed) are communicated in place, others through a
// contiguous copy. All ranks must pass the same shape, type and memory layout; otherwise every rank
// gets Error(kInvalid). Other errors and thread safety are those of ProcessGroup.
//
//   tensors                                 all_reduce, broadcast, ...  gather, scatter, all_to_all
//   dense, the same strides on every rank   used in place               used through a copy
//   dense, other strides on one rank        error on every rank         used through a copy
//   not dense: sliced, or expanded inputs   used through a copy         used through a copy
//   another shape on one rank               error on every rank         error on every rank
//
// In the operations of the last column a rank has blocks of several ranks; they use contiguous
// tensors in place. A tensor of one dimension is treated like a buffer of ProcessGroup.
//
// `root` and `peer` are ranks of `group`, not of the world.
//
// CUDA tensors need a group with a CUDA backend (cpu:paceline,cuda:nccl; otherwise
// Error(kUnsupported)), and must be on the device that was current when the group formed. Calls are
// ordered with streams, as in torch.distributed: a call starts after the work that is already
// queued on the current stream. Work that is queued on it after the call or its Work::wait() has
// returned starts after the call has ended. GroupOptions::blocking_wait makes the host wait for the
// results. send and recv, and tensors on other devices, are Error(kUnsupported).
//
// The asynchronous forms write to tensors of the caller, which must be dense, and for the
// operations of the last column contiguous; they keep all tensors alive until the work has
// completed.

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "paceline/engine/collectives/group/group_ref.h"
#include "paceline/engine/collectives/group/process_group.h"

namespace paceline {

// The last argument of every function below.
struct CollectiveOptions {
  std::optional<std::chrono::milliseconds> timeout = {};  // at least 1 ms; empty: the group's
};

struct TensorLists {
  std::vector<at::Tensor> inputs = {};  // empty: the call is in place
  std::vector<at::Tensor> outputs = {};
};

// A Call (engine/collectives/call.h) on tensors; each function below fills in one of these.
struct TensorCall {
  Op op = Op::kBarrier;
  at::Tensor input = {};
  at::Tensor output = {};  // equal to `input`: the call is in place
  ReduceOp reduce_op = ReduceOp::kSum;
  std::optional<std::uint32_t> divisor = {};
  int root = 0;
  int peer = 0;
  std::uint32_t tag = 0;
  // As the fields of Call, but counted in rows: elements along dim 0.
  std::vector<std::int64_t> counts = {};
  std::vector<std::int64_t> receive_counts = {};
  bool with_shape = false;                // for a send: the message contains the input's sizes
  std::optional<TensorLists> lists = {};  // for a coalesced call: replaces input and output
  std::optional<std::chrono::milliseconds> timeout = {};  // at least 1 ms; empty: the group's
};
void run(GroupRef group, const TensorCall& call);
WorkPtr start(GroupRef group, const TensorCall& call);

// These collectives work in place.
void all_reduce(GroupRef group, const at::Tensor& tensor, ReduceOp op = ReduceOp::kSum,
                const CollectiveOptions& options = {});
WorkPtr all_reduce_async(GroupRef group, const at::Tensor& tensor, ReduceOp op = ReduceOp::kSum,
                         const CollectiveOptions& options = {});
void broadcast(GroupRef group, const at::Tensor& tensor, int root,
               const CollectiveOptions& options = {});
WorkPtr broadcast_async(GroupRef group, const at::Tensor& tensor, int root,
                        const CollectiveOptions& options = {});
void reduce(GroupRef group, const at::Tensor& tensor, int root, ReduceOp op = ReduceOp::kSum,
            const CollectiveOptions& options = {});
WorkPtr reduce_async(GroupRef group, const at::Tensor& tensor, int root,
                     ReduceOp op = ReduceOp::kSum, const CollectiveOptions& options = {});

// Returns the tensors of all ranks, in rank order.
std::vector<at::Tensor> all_gather(GroupRef group, const at::Tensor& tensor,
                                   const CollectiveOptions& options = {});
// Returns all ranks' tensors concatenated along dim 0.
at::Tensor all_gather_into_tensor(GroupRef group, const at::Tensor& tensor,
                                  const CollectiveOptions& options = {});
WorkPtr all_gather_into_tensor_async(GroupRef group, const at::Tensor& output,
                                     const at::Tensor& input,
                                     const CollectiveOptions& options = {});
// As all_gather_into_tensor(), but rank r has rows[r] rows; all ranks must pass the same `rows`.
at::Tensor all_gather_v(GroupRef group, const at::Tensor& tensor,
                        const std::vector<std::int64_t>& rows,
                        const CollectiveOptions& options = {});
WorkPtr all_gather_v_async(GroupRef group, const at::Tensor& output, const at::Tensor& input,
                           const std::vector<std::int64_t>& rows,
                           const CollectiveOptions& options = {});
// Returns the tensors of all ranks at root, as all_gather() does, and an empty list on other ranks.
// In the asynchronous form, `output` is a single tensor; on other ranks it is undefined.
std::vector<at::Tensor> gather(GroupRef group, const at::Tensor& tensor, int root,
                               const CollectiveOptions& options = {});
WorkPtr gather_async(GroupRef group, const at::Tensor& output, const at::Tensor& input, int root,
                     const CollectiveOptions& options = {});
// Root passes one tensor for each rank, with the sizes of `output`; other ranks pass an empty list.
// In the asynchronous form, `input` is a single tensor; on other ranks it is undefined.
void scatter(GroupRef group, const at::Tensor& output, const std::vector<at::Tensor>& inputs,
             int root, const CollectiveOptions& options = {});
WorkPtr scatter_async(GroupRef group, const at::Tensor& output, const at::Tensor& input, int root,
                      const CollectiveOptions& options = {});

// Cuts `input` along dim 0 into world_size equal parts and returns this rank's part of the
// reduction. Error(kInvalid) when world_size does not divide dim 0.
at::Tensor reduce_scatter(GroupRef group, const at::Tensor& input, ReduceOp op = ReduceOp::kSum,
                          const CollectiveOptions& options = {});
WorkPtr reduce_scatter_async(GroupRef group, const at::Tensor& output, const at::Tensor& input,
                             ReduceOp op = ReduceOp::kSum, const CollectiveOptions& options = {});
// As reduce_scatter(), but the part of rank r has rows[r] rows.
at::Tensor reduce_scatter_v(GroupRef group, const at::Tensor& input,
                            const std::vector<std::int64_t>& rows, ReduceOp op = ReduceOp::kSum,
                            const CollectiveOptions& options = {});
WorkPtr reduce_scatter_v_async(GroupRef group, const at::Tensor& output, const at::Tensor& input,
                               const std::vector<std::int64_t>& rows, ReduceOp op = ReduceOp::kSum,
                               const CollectiveOptions& options = {});
// Cuts `input` along dim 0 into equal parts and sends part r to rank r. The result has the parts
// that all ranks sent to this one, in rank order.
at::Tensor all_to_all_single(GroupRef group, const at::Tensor& input,
                             const CollectiveOptions& options = {});
WorkPtr all_to_all_single_async(GroupRef group, const at::Tensor& output, const at::Tensor& input,
                                const CollectiveOptions& options = {});
// As all_to_all_single(), with send_rows[r] rows sent to rank r and receive_rows[r] rows received
// from it.
at::Tensor all_to_all_v(GroupRef group, const at::Tensor& input,
                        const std::vector<std::int64_t>& send_rows,
                        const std::vector<std::int64_t>& receive_rows,
                        const CollectiveOptions& options = {});
WorkPtr all_to_all_v_async(GroupRef group, const at::Tensor& output, const at::Tensor& input,
                           const std::vector<std::int64_t>& send_rows,
                           const std::vector<std::int64_t>& receive_rows,
                           const CollectiveOptions& options = {});

// One operation on many dense CPU tensors of the same type, at the cost of a single call
// (ProcessGroup::all_reduce_coalesced). In place.
void all_reduce_coalesced(GroupRef group, const std::vector<at::Tensor>& tensors,
                          ReduceOp op = ReduceOp::kSum, const CollectiveOptions& options = {});
WorkPtr all_reduce_coalesced_async(GroupRef group, const std::vector<at::Tensor>& tensors,
                                   ReduceOp op = ReduceOp::kSum,
                                   const CollectiveOptions& options = {});
void broadcast_coalesced(GroupRef group, const std::vector<at::Tensor>& tensors, int root,
                         const CollectiveOptions& options = {});
WorkPtr broadcast_coalesced_async(GroupRef group, const std::vector<at::Tensor>& tensors, int root,
                                  const CollectiveOptions& options = {});
// outputs[i] gets inputs[i] of all ranks; in reduce_scatter_coalesced() it gets this rank's part of
// their reduction.
void all_gather_coalesced(GroupRef group, const std::vector<at::Tensor>& outputs,
                          const std::vector<at::Tensor>& inputs,
                          const CollectiveOptions& options = {});
WorkPtr all_gather_coalesced_async(GroupRef group, const std::vector<at::Tensor>& outputs,
                                   const std::vector<at::Tensor>& inputs,
                                   const CollectiveOptions& options = {});
void reduce_scatter_coalesced(GroupRef group, const std::vector<at::Tensor>& outputs,
                              const std::vector<at::Tensor>& inputs, ReduceOp op = ReduceOp::kSum,
                              const CollectiveOptions& options = {});
WorkPtr reduce_scatter_coalesced_async(GroupRef group, const std::vector<at::Tensor>& outputs,
                                       const std::vector<at::Tensor>& inputs,
                                       ReduceOp op = ReduceOp::kSum,
                                       const CollectiveOptions& options = {});

void send(GroupRef group, const at::Tensor& tensor, int peer, std::uint32_t tag = 0,
          const CollectiveOptions& options = {});
WorkPtr send_async(GroupRef group, const at::Tensor& tensor, int peer, std::uint32_t tag = 0,
                   const CollectiveOptions& options = {});
// Returns the sender's rank; the asynchronous form provides it as Work::source_rank().
int recv(GroupRef group, const at::Tensor& tensor, int peer, std::uint32_t tag = 0,
         const CollectiveOptions& options = {});
WorkPtr recv_async(GroupRef group, const at::Tensor& tensor, int peer, std::uint32_t tag = 0,
                   const CollectiveOptions& options = {});

// Sends and receives that start together (ProcessGroup::batch_isend_irecv): calls with Op::kSend or
// Op::kReceive, an input or an output, a peer and a tag.
//
//   for (const auto& work : batch_isend_irecv(
//            group, {{.op = Op::kSend, .input = mine, .peer = next},
//                    {.op = Op::kReceive, .output = theirs, .peer = previous}}))
//     work->wait();
std::vector<WorkPtr> batch_isend_irecv(GroupRef group, const std::vector<TensorCall>& messages);

// For tensors whose shape and type the receiver does not know: the message contains both. The
// tensor must be contiguous, on the CPU, and have at most 8 dimensions. recv() with a tensor of the
// same shape can also receive such a message.
void send_with_shape(GroupRef group, const at::Tensor& tensor, int peer, std::uint32_t tag = 0,
                     const CollectiveOptions& options = {});
WorkPtr send_with_shape_async(GroupRef group, const at::Tensor& tensor, int peer,
                              std::uint32_t tag = 0, const CollectiveOptions& options = {});
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
PendingTensor recv_with_shape_async(GroupRef group, int peer, std::uint32_t tag = 0,
                                    const CollectiveOptions& options = {});

// Collective. Returns a tensor of zeros in the group's symmetric memory: collectives on it need no
// copies, except for small and coalesced calls (docs/network.md). The tensor keeps
// its memory alive.
at::Tensor empty_symmetric(GroupRef group, at::IntArrayRef sizes, at::ScalarType type = at::kFloat);

}  // namespace paceline
