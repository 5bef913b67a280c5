// The named operations of a group. Each only fills in a Call.

#include "paceline/engine/collectives/call.h"
#include "paceline/engine/collectives/group/process_group.h"
#include "paceline/engine/core/check.h"

namespace paceline {
namespace {

CallOptions blocking(const CollectiveOptions& options, const char* what, const char* instead) {
  check(!options.async_op, "{} takes no async_op: call {}, which returns a Work", what, instead);
  return {.timeout = options.timeout, .keep_alive = options.keep_alive};
}

}  // namespace

WorkPtr ProcessGroup::carry_out(const Call& call, const CollectiveOptions& options) {
  if (options.async_op) {
    return start(call, {.timeout = options.timeout, .keep_alive = options.keep_alive});
  }
  run(call, {.timeout = options.timeout});
  return Work::completed();
}

WorkPtr ProcessGroup::all_reduce(Buffer buffer, ReduceOp op, const CollectiveOptions& options) {
  return carry_out({Op::kAllReduce, buffer, buffer, op}, options);
}

WorkPtr ProcessGroup::all_reduce(Buffer output, ConstBuffer input, ReduceOp op,
                                 const CollectiveOptions& options) {
  return carry_out({Op::kAllReduce, input, output, op}, options);
}

WorkPtr ProcessGroup::broadcast(Buffer buffer, int root, const CollectiveOptions& options) {
  return carry_out({.op = Op::kBroadcast, .input = buffer, .output = buffer, .root = root},
                   options);
}

WorkPtr ProcessGroup::reduce(Buffer buffer, int root, ReduceOp op,
                             const CollectiveOptions& options) {
  return carry_out({Op::kReduce, buffer, buffer, op, {}, root}, options);
}

WorkPtr ProcessGroup::all_gather(Buffer output, ConstBuffer input,
                                 const CollectiveOptions& options) {
  return carry_out({Op::kAllGather, input, output}, options);
}

WorkPtr ProcessGroup::gather(Buffer output, ConstBuffer input, int root,
                             const CollectiveOptions& options) {
  return carry_out({.op = Op::kGather, .input = input, .output = output, .root = root}, options);
}

WorkPtr ProcessGroup::scatter(Buffer output, ConstBuffer input, int root,
                              const CollectiveOptions& options) {
  return carry_out({.op = Op::kScatter, .input = input, .output = output, .root = root}, options);
}

WorkPtr ProcessGroup::reduce_scatter(Buffer output, ConstBuffer input, ReduceOp op,
                                     const CollectiveOptions& options) {
  return carry_out({Op::kReduceScatter, input, output, op}, options);
}

WorkPtr ProcessGroup::all_to_all(Buffer output, ConstBuffer input,
                                 const CollectiveOptions& options) {
  return carry_out({Op::kAllToAll, input, output}, options);
}

WorkPtr ProcessGroup::all_gather_v(Buffer output, ConstBuffer input,
                                   std::span<const std::size_t> counts,
                                   const CollectiveOptions& options) {
  return carry_out({.op = Op::kAllGatherV, .input = input, .output = output, .counts = counts},
                   options);
}

WorkPtr ProcessGroup::reduce_scatter_v(Buffer output, ConstBuffer input,
                                       std::span<const std::size_t> counts, ReduceOp op,
                                       const CollectiveOptions& options) {
  return carry_out({.op = Op::kReduceScatterV,
                    .input = input,
                    .output = output,
                    .reduce_op = op,
                    .counts = counts},
                   options);
}

WorkPtr ProcessGroup::all_to_all_v(Buffer output, ConstBuffer input,
                                   std::span<const std::size_t> receive_counts,
                                   std::span<const std::size_t> send_counts,
                                   const CollectiveOptions& options) {
  return carry_out({.op = Op::kAllToAllV,
                    .input = input,
                    .output = output,
                    .counts = send_counts,
                    .receive_counts = receive_counts},
                   options);
}

WorkPtr ProcessGroup::all_reduce_coalesced(std::span<const Buffer> buffers, ReduceOp op,
                                           const CollectiveOptions& options) {
  return carry_out({.op = Op::kAllReduce, .reduce_op = op, .lists = BufferLists{{}, buffers}},
                   options);
}

WorkPtr ProcessGroup::broadcast_coalesced(std::span<const Buffer> buffers, int root,
                                          const CollectiveOptions& options) {
  return carry_out({.op = Op::kBroadcast, .root = root, .lists = BufferLists{{}, buffers}},
                   options);
}

WorkPtr ProcessGroup::all_gather_coalesced(std::span<const Buffer> outputs,
                                           std::span<const ConstBuffer> inputs,
                                           const CollectiveOptions& options) {
  return carry_out({.op = Op::kAllGather, .lists = BufferLists{inputs, outputs}}, options);
}

WorkPtr ProcessGroup::reduce_scatter_coalesced(std::span<const Buffer> outputs,
                                               std::span<const ConstBuffer> inputs, ReduceOp op,
                                               const CollectiveOptions& options) {
  return carry_out(
      {.op = Op::kReduceScatter, .reduce_op = op, .lists = BufferLists{inputs, outputs}}, options);
}

WorkPtr ProcessGroup::barrier(const CollectiveOptions& options) {
  return carry_out({.op = Op::kBarrier}, options);
}

void ProcessGroup::monitored_barrier(std::chrono::milliseconds timeout) {
  barrier({.timeout = timeout});
}

void ProcessGroup::send(ConstBuffer buffer, int peer, std::uint32_t tag,
                        const CollectiveOptions& options) {
  run({.op = Op::kSend, .input = buffer, .peer = peer, .tag = tag},
      blocking(options, "send", "isend()"));
}

int ProcessGroup::recv(Buffer buffer, int peer, std::uint32_t tag,
                       const CollectiveOptions& options) {
  return recv(Call{.op = Op::kReceive, .output = buffer, .peer = peer, .tag = tag},
              blocking(options, "recv", "irecv()"));
}

WorkPtr ProcessGroup::isend(ConstBuffer buffer, int peer, std::uint32_t tag,
                            const CollectiveOptions& options) {
  return start({.op = Op::kSend, .input = buffer, .peer = peer, .tag = tag},
               {.timeout = options.timeout, .keep_alive = options.keep_alive});
}

WorkPtr ProcessGroup::irecv(Buffer buffer, int peer, std::uint32_t tag,
                            const CollectiveOptions& options) {
  return start({.op = Op::kReceive, .output = buffer, .peer = peer, .tag = tag},
               {.timeout = options.timeout, .keep_alive = options.keep_alive});
}

std::shared_ptr<ProcessGroup> detail::require_group(std::shared_ptr<ProcessGroup> group,
                                                    const char* user) {
  check(group != nullptr,
        "{}: the group is a null pointer; give it the group of init_process_group()", user);
  return group;
}

}  // namespace paceline
