#pragma once

// Collectives on tensors: the names and semantics of torch.distributed. Tensors need not be
// contiguous: dense ones (channels_last, transposed) are communicated in place, others through a
// contiguous copy. All ranks must pass the same shape, type and memory layout. Errors and thread
// safety are those of ProcessGroup.
//
// CUDA tensors need a group with a backend for them (cpu:paceline,cuda:nccl; Error(kUnsupported)
// otherwise), on the device that was current when it formed. They keep the order of streams, as in
// torch.distributed: a call comes after what the current stream has been given, and when it
// returns, or its Work::wait() does, the current stream is behind it and results may be used in
// that stream; GroupOptions::blocking_wait waits for the results themselves. send and recv, and
// tensors on other devices, are Error(kUnsupported).
//
// The asynchronous forms need dense tensors and keep them alive until the work has completed.

#include <vector>

#include <ATen/core/Tensor.h>

#include "paceline/collectives/process_group.h"

namespace paceline {

void all_reduce(ProcessGroup& group, const at::Tensor& tensor, ReduceOp op = ReduceOp::kSum);
WorkPtr all_reduce_async(ProcessGroup& group, const at::Tensor& tensor,
                         ReduceOp op = ReduceOp::kSum);

void broadcast(ProcessGroup& group, const at::Tensor& tensor, int root);
void reduce(ProcessGroup& group, const at::Tensor& tensor, int root, ReduceOp op = ReduceOp::kSum);

// The tensors of all ranks, in rank order.
std::vector<at::Tensor> all_gather(ProcessGroup& group, const at::Tensor& tensor);
// All ranks' tensors concatenated along dim 0.
at::Tensor all_gather_into_tensor(ProcessGroup& group, const at::Tensor& tensor);
// As all_gather at root; empty elsewhere.
std::vector<at::Tensor> gather(ProcessGroup& group, const at::Tensor& tensor, int root);
// Root gives one tensor per rank, all like `output`; others pass none.
void scatter(ProcessGroup& group, const std::vector<at::Tensor>& inputs, const at::Tensor& output,
             int root);

// `input` is cut along dim 0 into world_size equal parts; the result is this rank's part of the
// reduction. Error(kInvalid) when dim 0 does not divide.
at::Tensor reduce_scatter(ProcessGroup& group, const at::Tensor& input,
                          ReduceOp op = ReduceOp::kSum);
// `input` is cut along dim 0; part r goes to rank r. The result has the parts that came, in rank
// order.
at::Tensor all_to_all_single(ProcessGroup& group, const at::Tensor& input);

void send(ProcessGroup& group, const at::Tensor& tensor, int peer, std::uint32_t tag = 0);
// Returns the sender's rank.
int recv(ProcessGroup& group, const at::Tensor& tensor, int peer, std::uint32_t tag = 0);

// A zeroed tensor in the group's symmetric memory: collectives on it need no copies, but for small
// and coalesced calls (docs/algorithms.md, section 4). Collective. The tensor keeps its memory
// alive.
at::Tensor empty_symmetric(ProcessGroup& group, at::IntArrayRef sizes,
                           at::ScalarType type = at::kFloat);

}  // namespace paceline
