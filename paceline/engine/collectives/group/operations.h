#pragma once

// The operations of a group by name, for raw buffers. Each has two forms, which only fill in the
// same Call (call.h): the blocking form passes it to run(), the `_async` form passes it to start(),
// which returns a Work at once. ProcessGroup (process_group.h) carries out the calls; its comment
// has the rules.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>

#include "paceline/engine/collectives/buffer.h"
#include "paceline/engine/collectives/call.h"
#include "paceline/engine/collectives/op.h"
#include "paceline/engine/collectives/work.h"

namespace paceline {

class GroupOperations {
 public:
  virtual ~GroupOperations() = default;

  // Carries out a call, blocking or as a Work. The buffers of a call must not overlap, except as
  // the operation allows; otherwise Error(kInvalid).
  virtual void run(const Call& call, const CallOptions& options = {}) = 0;
  virtual WorkPtr start(const Call& call, const CallOptions& options = {}) = 0;
  // As run() of a kReceive; returns the sender's rank, as Work::source_rank() does.
  virtual int recv(const Call& call, const CallOptions& options = {}) = 0;

  // Replaces every rank's elements by their reduction.
  void all_reduce(Buffer buffer, ReduceOp op = ReduceOp::kSum, const CallOptions& options = {}) {
    run({Op::kAllReduce, buffer, buffer, op}, options);
  }
  WorkPtr all_reduce_async(Buffer buffer, ReduceOp op = ReduceOp::kSum,
                           const CallOptions& options = {}) {
    return start({Op::kAllReduce, buffer, buffer, op}, options);
  }

  // As above, from `input` to `output`, which have the same count.
  void all_reduce(ConstBuffer input, Buffer output, ReduceOp op, const CallOptions& options = {}) {
    run({Op::kAllReduce, input, output, op}, options);
  }
  WorkPtr all_reduce_async(ConstBuffer input, Buffer output, ReduceOp op,
                           const CallOptions& options = {}) {
    return start({Op::kAllReduce, input, output, op}, options);
  }

  // Root's elements replace every rank's. `root`, here and below: a rank of this group.
  void broadcast(Buffer buffer, int root, const CallOptions& options = {}) {
    run({.op = Op::kBroadcast, .input = buffer, .output = buffer, .root = root}, options);
  }
  WorkPtr broadcast_async(Buffer buffer, int root, const CallOptions& options = {}) {
    return start({.op = Op::kBroadcast, .input = buffer, .output = buffer, .root = root}, options);
  }

  // Root's `buffer` gets the result; the other ranks' buffers stay unchanged.
  void reduce(Buffer buffer, int root, ReduceOp op = ReduceOp::kSum,
              const CallOptions& options = {}) {
    run({Op::kReduce, buffer, buffer, op, {}, root}, options);
  }
  WorkPtr reduce_async(Buffer buffer, int root, ReduceOp op = ReduceOp::kSum,
                       const CallOptions& options = {}) {
    return start({Op::kReduce, buffer, buffer, op, {}, root}, options);
  }

  // output.count == input.count * world_size; rank r's elements begin at r * input.count. `input`
  // may be this rank's block of `output`.
  void all_gather(ConstBuffer input, Buffer output, const CallOptions& options = {}) {
    run({Op::kAllGather, input, output}, options);
  }
  WorkPtr all_gather_async(ConstBuffer input, Buffer output, const CallOptions& options = {}) {
    return start({Op::kAllGather, input, output}, options);
  }

  // As all_gather, at root only; the others pass an empty output.
  void gather(ConstBuffer input, Buffer output, int root, const CallOptions& options = {}) {
    run({.op = Op::kGather, .input = input, .output = output, .root = root}, options);
  }
  WorkPtr gather_async(ConstBuffer input, Buffer output, int root,
                       const CallOptions& options = {}) {
    return start({.op = Op::kGather, .input = input, .output = output, .root = root}, options);
  }

  // Root's block r goes to rank r: input.count == output.count * world_size at root; the others
  // pass an empty input. `output` may be root's own block of `input`.
  void scatter(ConstBuffer input, Buffer output, int root, const CallOptions& options = {}) {
    run({.op = Op::kScatter, .input = input, .output = output, .root = root}, options);
  }
  WorkPtr scatter_async(ConstBuffer input, Buffer output, int root,
                        const CallOptions& options = {}) {
    return start({.op = Op::kScatter, .input = input, .output = output, .root = root}, options);
  }

  // Rank r gets the reduction of every rank's block r: input.count == output.count * world_size.
  // `output` may be this rank's block of `input`, whose other blocks stay as they are.
  void reduce_scatter(ConstBuffer input, Buffer output, ReduceOp op = ReduceOp::kSum,
                      const CallOptions& options = {}) {
    run({Op::kReduceScatter, input, output, op}, options);
  }
  WorkPtr reduce_scatter_async(ConstBuffer input, Buffer output, ReduceOp op = ReduceOp::kSum,
                               const CallOptions& options = {}) {
    return start({Op::kReduceScatter, input, output, op}, options);
  }

  // Block r of `input` goes to rank r, where it becomes block rank() of `output`. The buffers must
  // not overlap.
  void all_to_all(ConstBuffer input, Buffer output, const CallOptions& options = {}) {
    run({Op::kAllToAll, input, output}, options);
  }
  WorkPtr all_to_all_async(ConstBuffer input, Buffer output, const CallOptions& options = {}) {
    return start({Op::kAllToAll, input, output}, options);
  }

  // As all_gather, with a count for each rank: rank r gives counts[r] elements, which follow those
  // of the ranks before it.
  void all_gather_v(ConstBuffer input, Buffer output, std::span<const std::size_t> counts,
                    const CallOptions& options = {}) {
    run({.op = Op::kAllGatherV, .input = input, .output = output, .counts = counts}, options);
  }
  WorkPtr all_gather_v_async(ConstBuffer input, Buffer output, std::span<const std::size_t> counts,
                             const CallOptions& options = {}) {
    return start({.op = Op::kAllGatherV, .input = input, .output = output, .counts = counts},
                 options);
  }

  // As reduce_scatter, with a count for each rank: rank r gets the reduction of every rank's block
  // r, which has counts[r] elements.
  void reduce_scatter_v(ConstBuffer input, Buffer output, std::span<const std::size_t> counts,
                        ReduceOp op = ReduceOp::kSum, const CallOptions& options = {}) {
    run({.op = Op::kReduceScatterV,
         .input = input,
         .output = output,
         .reduce_op = op,
         .counts = counts},
        options);
  }
  WorkPtr reduce_scatter_v_async(ConstBuffer input, Buffer output,
                                 std::span<const std::size_t> counts, ReduceOp op = ReduceOp::kSum,
                                 const CallOptions& options = {}) {
    return start({.op = Op::kReduceScatterV,
                  .input = input,
                  .output = output,
                  .reduce_op = op,
                  .counts = counts},
                 options);
  }

  // As all_to_all, with a count for each pair. Rank r gets the send_counts[r] elements of block r
  // of `input`, and receive_counts[r] elements come from rank r. If that differs from the number
  // that rank r sends, every rank throws Error(kInvalid) before any element moves. The ranks
  // exchange their counts first, which costs the time of a small all_gather.
  void all_to_all_v(ConstBuffer input, std::span<const std::size_t> send_counts, Buffer output,
                    std::span<const std::size_t> receive_counts, const CallOptions& options = {}) {
    run({.op = Op::kAllToAllV,
         .input = input,
         .output = output,
         .counts = send_counts,
         .receive_counts = receive_counts},
        options);
  }
  WorkPtr all_to_all_v_async(ConstBuffer input, std::span<const std::size_t> send_counts,
                             Buffer output, std::span<const std::size_t> receive_counts,
                             const CallOptions& options = {}) {
    return start({.op = Op::kAllToAllV,
                  .input = input,
                  .output = output,
                  .counts = send_counts,
                  .receive_counts = receive_counts},
                 options);
  }

  // One operation on many buffers of one type, as if they lay one after the other: a call on many
  // small buffers costs as much as a call on one buffer. The elements are copied, a few megabytes
  // at a time. All ranks pass lists of the same counts.
  void all_reduce_coalesced(std::span<const Buffer> buffers, ReduceOp op = ReduceOp::kSum,
                            const CallOptions& options = {}) {
    run({.op = Op::kAllReduce, .reduce_op = op, .lists = BufferLists{{}, buffers}}, options);
  }
  WorkPtr all_reduce_coalesced_async(std::span<const Buffer> buffers, ReduceOp op = ReduceOp::kSum,
                                     const CallOptions& options = {}) {
    return start({.op = Op::kAllReduce, .reduce_op = op, .lists = BufferLists{{}, buffers}},
                 options);
  }
  void broadcast_coalesced(std::span<const Buffer> buffers, int root,
                           const CallOptions& options = {}) {
    run({.op = Op::kBroadcast, .root = root, .lists = BufferLists{{}, buffers}}, options);
  }
  WorkPtr broadcast_coalesced_async(std::span<const Buffer> buffers, int root,
                                    const CallOptions& options = {}) {
    return start({.op = Op::kBroadcast, .root = root, .lists = BufferLists{{}, buffers}}, options);
  }
  // outputs[i].count == inputs[i].count * world_size, as in all_gather. The same holds below.
  void all_gather_coalesced(std::span<const ConstBuffer> inputs, std::span<const Buffer> outputs,
                            const CallOptions& options = {}) {
    run({.op = Op::kAllGather, .lists = BufferLists{inputs, outputs}}, options);
  }
  WorkPtr all_gather_coalesced_async(std::span<const ConstBuffer> inputs,
                                     std::span<const Buffer> outputs,
                                     const CallOptions& options = {}) {
    return start({.op = Op::kAllGather, .lists = BufferLists{inputs, outputs}}, options);
  }
  void reduce_scatter_coalesced(std::span<const ConstBuffer> inputs,
                                std::span<const Buffer> outputs, ReduceOp op = ReduceOp::kSum,
                                const CallOptions& options = {}) {
    run({.op = Op::kReduceScatter, .reduce_op = op, .lists = BufferLists{inputs, outputs}},
        options);
  }
  WorkPtr reduce_scatter_coalesced_async(std::span<const ConstBuffer> inputs,
                                         std::span<const Buffer> outputs,
                                         ReduceOp op = ReduceOp::kSum,
                                         const CallOptions& options = {}) {
    return start({.op = Op::kReduceScatter, .reduce_op = op, .lists = BufferLists{inputs, outputs}},
                 options);
  }

  void barrier(const CallOptions& options = {}) { run({.op = Op::kBarrier}, options); }
  WorkPtr barrier_async(const CallOptions& options = {}) {
    return start({.op = Op::kBarrier}, options);
  }
  // A barrier with a limit of its own, for finding out which ranks are missing: its Error(kTimeout)
  // names every rank that did not arrive.
  void monitored_barrier(std::chrono::milliseconds timeout) { barrier({.timeout = timeout}); }

  // Messages, matched by (peer, tag) in the order of sending. `peer`: a rank of this group.
  void send(ConstBuffer buffer, int peer, std::uint32_t tag = 0, const CallOptions& options = {}) {
    run({.op = Op::kSend, .input = buffer, .peer = peer, .tag = tag}, options);
  }
  WorkPtr send_async(ConstBuffer buffer, int peer, std::uint32_t tag = 0,
                     const CallOptions& options = {}) {
    return start({.op = Op::kSend, .input = buffer, .peer = peer, .tag = tag}, options);
  }
  // `peer` may be kAnySource. Returns the sender's rank.
  int recv(Buffer buffer, int peer, std::uint32_t tag = 0, const CallOptions& options = {}) {
    return recv({.op = Op::kReceive, .output = buffer, .peer = peer, .tag = tag}, options);
  }
  WorkPtr recv_async(Buffer buffer, int peer, std::uint32_t tag = 0,
                     const CallOptions& options = {}) {
    return start({.op = Op::kReceive, .output = buffer, .peer = peer, .tag = tag}, options);
  }
};

// Reduces a single value in CPU memory and returns the result on every rank: for example the number
// of correct answers.
template <class T>
T all_reduce_value(GroupOperations& group, T value, ReduceOp op = ReduceOp::kSum) {
  group.all_reduce(std::span<T>(&value, 1), op);
  return value;
}

}  // namespace paceline
