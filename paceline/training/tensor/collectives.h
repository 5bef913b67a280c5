#pragma once

// Collectives on tensors, with the names and semantics of torch.distributed. Tensors need not be
// contiguous: dense tensors (channels_last, transposed) are communicated in place, others through a
// contiguous copy. All ranks must pass the same shape, type and (see the table) strides; otherwise
// every rank gets Error(kInvalid). Other errors and thread safety are those of ProcessGroup.
//
//   tensors                                 all_reduce, broadcast, ...  gather, scatter, all_to_all
//   dense, the same strides on every rank   used in place               used through a copy
//   dense, other strides on one rank        error on every rank         used through a copy
//   not dense: sliced, or expanded inputs   used through a copy         used through a copy
//   another shape on one rank               error on every rank         error on every rank
//
// In the operations of the last column a rank has blocks of several ranks; these operations use
// contiguous tensors in place. A tensor of one dimension is treated like a buffer of ProcessGroup.
//
// `root` and `peer` are ranks of `group`, not of the world.
//
// CUDA tensors of a call must be on one device; with a CUDA backend (cpu:paceline,cuda:nccl), on
// the device that was current when the group formed. In a group without a CUDA backend, the call
// works on copies in host memory (docs/devices.md). Calls are ordered with streams, as in
// torch.distributed: a call starts after the work that is already queued on the current stream.
// Work that is queued on that stream after the call or its Work::wait() has returned starts after
// the call has ended. GroupOptions::blocking_wait makes the host wait for the results. Tensors on
// devices of other types are Error(kUnsupported).
//
// With a CUDA backend, calls that send or receive messages do not wait for the device. Messages are
// delivered in the order of sending: recv() waits until this rank has also asked for all earlier
// messages of the sender (irecv()). The first send from one rank to another waits until the
// receive has been called. The stream of a send() waits for the transfer, so ranks that all call
// send() before recv() wait for each other; use isend() or batch_isend_irecv().
//
// The tensors of an asynchronous call must be dense, and for the operations of the last column
// contiguous; the call keeps them alive until the work has completed.

#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "paceline/engine/collectives/group/group_options.h"
#include "paceline/engine/collectives/group/object_collectives.h"
#include "paceline/engine/collectives/group/process_group.h"

namespace paceline {

// Each function takes CollectiveOptions last (group_options.h). As in torch.distributed, a function
// that writes to tensors of the caller blocks and returns a Work that has completed, or with
// `.async_op` returns a Work at once. Functions that return their result do not support async_op;
// use the variants with `output`.

// These collectives work in place.
WorkPtr all_reduce(GroupRef group, const at::Tensor& tensor, ReduceOp op = ReduceOp::kSum,
                   const CollectiveOptions& options = {});
WorkPtr broadcast(GroupRef group, const at::Tensor& tensor, int root,
                  const CollectiveOptions& options = {});
WorkPtr reduce(GroupRef group, const at::Tensor& tensor, int root, ReduceOp op = ReduceOp::kSum,
               const CollectiveOptions& options = {});

// Returns the tensors of all ranks, in rank order.
std::vector<at::Tensor> all_gather(GroupRef group, const at::Tensor& tensor,
                                   const CollectiveOptions& options = {});
// Returns all ranks' tensors concatenated along dim 0, or writes them to `output`.
at::Tensor all_gather_into_tensor(GroupRef group, const at::Tensor& input,
                                  const CollectiveOptions& options = {});
WorkPtr all_gather_into_tensor(GroupRef group, const at::Tensor& output, const at::Tensor& input,
                               const CollectiveOptions& options = {});
// Like all_gather_into_tensor(), but rank r has rows[r] rows; all ranks must pass the same `rows`.
at::Tensor all_gather_v(GroupRef group, const at::Tensor& input,
                        const std::vector<std::int64_t>& rows,
                        const CollectiveOptions& options = {});
WorkPtr all_gather_v(GroupRef group, const at::Tensor& output, const at::Tensor& input,
                     const std::vector<std::int64_t>& rows, const CollectiveOptions& options = {});
// Returns the tensors of all ranks at root, as all_gather() does, and an empty list on other ranks.
// The variant with `output` writes them to one tensor; other ranks pass an undefined tensor.
std::vector<at::Tensor> gather(GroupRef group, const at::Tensor& tensor, int root,
                               const CollectiveOptions& options = {});
WorkPtr gather(GroupRef group, const at::Tensor& output, const at::Tensor& input, int root,
               const CollectiveOptions& options = {});
// Root passes one tensor for each rank, with the sizes of `output`; other ranks pass an empty list.
WorkPtr scatter(GroupRef group, const at::Tensor& output, const std::vector<at::Tensor>& inputs,
                int root, const CollectiveOptions& options = {});

// Cuts `input` along dim 0 into world_size equal parts and returns this rank's part of the
// reduction, or writes it to `output`. Error(kInvalid) when world_size does not divide dim 0.
at::Tensor reduce_scatter(GroupRef group, const at::Tensor& input, ReduceOp op = ReduceOp::kSum,
                          const CollectiveOptions& options = {});
WorkPtr reduce_scatter(GroupRef group, const at::Tensor& output, const at::Tensor& input,
                       ReduceOp op = ReduceOp::kSum, const CollectiveOptions& options = {});
// Like reduce_scatter(), but the part of rank r has rows[r] rows.
at::Tensor reduce_scatter_v(GroupRef group, const at::Tensor& input,
                            const std::vector<std::int64_t>& rows, ReduceOp op = ReduceOp::kSum,
                            const CollectiveOptions& options = {});
WorkPtr reduce_scatter_v(GroupRef group, const at::Tensor& output, const at::Tensor& input,
                         const std::vector<std::int64_t>& rows, ReduceOp op = ReduceOp::kSum,
                         const CollectiveOptions& options = {});
// Cuts `input` along dim 0 into equal parts and sends part r to rank r. The result has the parts
// that all ranks sent to this one, in rank order.
at::Tensor all_to_all_single(GroupRef group, const at::Tensor& input,
                             const CollectiveOptions& options = {});
WorkPtr all_to_all_single(GroupRef group, const at::Tensor& output, const at::Tensor& input,
                          const CollectiveOptions& options = {});
// Like all_to_all_single(), with receive_rows[r] rows received from rank r (PyTorch's
// output_split_sizes) and send_rows[r] rows sent to it (input_split_sizes).
at::Tensor all_to_all_single(GroupRef group, const at::Tensor& input,
                             const std::vector<std::int64_t>& receive_rows,
                             const std::vector<std::int64_t>& send_rows,
                             const CollectiveOptions& options = {});
WorkPtr all_to_all_single(GroupRef group, const at::Tensor& output, const at::Tensor& input,
                          const std::vector<std::int64_t>& receive_rows,
                          const std::vector<std::int64_t>& send_rows,
                          const CollectiveOptions& options = {});

// Point-to-point messages, as in ProcessGroup. recv() returns the sender's rank; after irecv(),
// Work::source_rank() returns it.
void send(GroupRef group, const at::Tensor& tensor, int peer, std::uint32_t tag = 0,
          const CollectiveOptions& options = {});
int recv(GroupRef group, const at::Tensor& tensor, int peer, std::uint32_t tag = 0,
         const CollectiveOptions& options = {});
WorkPtr isend(GroupRef group, const at::Tensor& tensor, int peer, std::uint32_t tag = 0,
              const CollectiveOptions& options = {});
WorkPtr irecv(GroupRef group, const at::Tensor& tensor, int peer, std::uint32_t tag = 0,
              const CollectiveOptions& options = {});

// A send or a receive of batch_isend_irecv(); PyTorch's P2POp.
struct P2POp {
  Op op = Op::kSend;  // or Op::kReceive
  at::Tensor tensor = {};
  int peer = 0;
  std::uint32_t tag = 0;
};
// Starts all of `messages` at once. The list may name sends and receives in any order: none of them
// waits for another.
//
//   for (const auto& work : batch_isend_irecv(group, {{Op::kSend, mine, next},
//                                                     {Op::kReceive, theirs, previous}}))
//     work->wait();
std::vector<WorkPtr> batch_isend_irecv(GroupRef group, const std::vector<P2POp>& messages,
                                       const CollectiveOptions& options = {});

// Collective. Returns a tensor of zeros, unlike at::empty(), in the group's symmetric memory. Most
// collectives on it need no copies on one host; docs/network.md lists the exceptions. The tensor
// keeps its memory alive.
at::Tensor empty_symmetric(GroupRef group, at::IntArrayRef sizes, at::ScalarType type = at::kFloat);

// Collectives on lists of tensors whose shapes and types the receiving ranks do not know, with the
// options and errors of engine/collectives/group/object_collectives.h. The tensors are sent as
// copies on the CPU, without gradients; for large tensors of known shape use the functions above.

// Collective. Returns root's tensors on every rank. `root` is a rank of `group`, here and below.
// Throws Error(kUnsupported) for element types that the engine does not support
// (engine/core/dtype.h).
std::vector<at::Tensor> broadcast_object(GroupRef group, const std::vector<at::Tensor>& tensors,
                                         int root, const ObjectOptions& options = {});
// Collective. Returns every rank's tensors, in rank order.
std::vector<std::vector<at::Tensor>> all_gather_object(GroupRef group,
                                                       const std::vector<at::Tensor>& tensors,
                                                       const ObjectOptions& options = {});
// Collective. Returns every rank's tensors at root, as all_gather_object() does, and an empty list
// on other ranks.
std::vector<std::vector<at::Tensor>> gather_objects(GroupRef group,
                                                    const std::vector<at::Tensor>& tensors,
                                                    int root, const ObjectOptions& options = {});

}  // namespace paceline
