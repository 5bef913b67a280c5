#pragma once

// The operations of a group by name, for raw buffers, in torch.distributed's order of arguments:
// the output, the input, the rest, the options. ProcessGroup (process_group.h) inherits them; its
// comment has the rules.
//
// Each operation blocks and returns null, or with `.async_op` returns a Work at once
// (collective_options.h).

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "paceline/engine/collectives/buffer.h"
#include "paceline/engine/collectives/collective_options.h"
#include "paceline/engine/collectives/op.h"
#include "paceline/engine/collectives/work.h"

namespace paceline {

struct Call;
struct CallOptions;

class GroupOperations {
 public:
  virtual ~GroupOperations() = default;

  // The buffers of an operation must not overlap, except as the operation allows; otherwise
  // Error(kInvalid).
  //
  // Replaces every rank's elements by their reduction.
  WorkPtr all_reduce(Buffer buffer, ReduceOp op = ReduceOp::kSum,
                     const CollectiveOptions& options = {});
  // As above, from `input` to `output`, which have the same count.
  WorkPtr all_reduce(Buffer output, ConstBuffer input, ReduceOp op,
                     const CollectiveOptions& options = {});
  // Root's elements replace every rank's. `root`, here and below: a rank of this group.
  WorkPtr broadcast(Buffer buffer, int root, const CollectiveOptions& options = {});
  // Root's `buffer` gets the result; the other ranks' buffers stay unchanged.
  WorkPtr reduce(Buffer buffer, int root, ReduceOp op = ReduceOp::kSum,
                 const CollectiveOptions& options = {});

  // output.count == input.count * world_size; rank r's elements begin at r * input.count. `input`
  // may be this rank's block of `output`.
  WorkPtr all_gather(Buffer output, ConstBuffer input, const CollectiveOptions& options = {});
  // As all_gather, at root only; the others pass an empty output.
  WorkPtr gather(Buffer output, ConstBuffer input, int root, const CollectiveOptions& options = {});
  // Root's block r goes to rank r: input.count == output.count * world_size at root; the others
  // pass an empty input. `output` may be root's own block of `input`.
  WorkPtr scatter(Buffer output, ConstBuffer input, int root,
                  const CollectiveOptions& options = {});
  // Rank r gets the reduction of every rank's block r: input.count == output.count * world_size.
  // `output` may be this rank's block of `input`, whose other blocks stay as they are.
  WorkPtr reduce_scatter(Buffer output, ConstBuffer input, ReduceOp op = ReduceOp::kSum,
                         const CollectiveOptions& options = {});
  // Block r of `input` goes to rank r, where it becomes block rank() of `output`. The buffers must
  // not overlap.
  WorkPtr all_to_all(Buffer output, ConstBuffer input, const CollectiveOptions& options = {});

  // As all_gather, with a count for each rank: rank r gives counts[r] elements, which follow those
  // of the ranks before it.
  WorkPtr all_gather_v(Buffer output, ConstBuffer input, std::span<const std::size_t> counts,
                       const CollectiveOptions& options = {});
  // As reduce_scatter, with a count for each rank: rank r gets the reduction of every rank's block
  // r, which has counts[r] elements.
  WorkPtr reduce_scatter_v(Buffer output, ConstBuffer input, std::span<const std::size_t> counts,
                           ReduceOp op = ReduceOp::kSum, const CollectiveOptions& options = {});
  // As all_to_all, with a count for each pair: receive_counts[r] elements come from rank r, and
  // rank r gets the send_counts[r] elements of block r of `input`. If rank r expects another
  // number, every rank throws Error(kInvalid) before any element moves. The ranks exchange their
  // counts first, which costs the time of a small all_gather.
  WorkPtr all_to_all_v(Buffer output, ConstBuffer input,
                       std::span<const std::size_t> receive_counts,
                       std::span<const std::size_t> send_counts,
                       const CollectiveOptions& options = {});

  // One operation on many buffers of one type, as if they lay one after the other: a call on many
  // small buffers costs as much as a call on one buffer. The elements are copied, a few megabytes
  // at a time. All ranks pass lists of the same counts.
  WorkPtr all_reduce_coalesced(std::span<const Buffer> buffers, ReduceOp op = ReduceOp::kSum,
                               const CollectiveOptions& options = {});
  // As above, with the elements of root.
  WorkPtr broadcast_coalesced(std::span<const Buffer> buffers, int root,
                              const CollectiveOptions& options = {});
  // outputs[i].count == inputs[i].count * world_size, as in all_gather.
  WorkPtr all_gather_coalesced(std::span<const Buffer> outputs, std::span<const ConstBuffer> inputs,
                               const CollectiveOptions& options = {});
  // inputs[i].count == outputs[i].count * world_size, as in reduce_scatter.
  WorkPtr reduce_scatter_coalesced(std::span<const Buffer> outputs,
                                   std::span<const ConstBuffer> inputs,
                                   ReduceOp op = ReduceOp::kSum,
                                   const CollectiveOptions& options = {});

  WorkPtr barrier(const CollectiveOptions& options = {});
  // A barrier with a limit of its own, for finding out which ranks are missing: its Error(kTimeout)
  // names every rank that did not arrive.
  void monitored_barrier(std::chrono::milliseconds timeout);

  // Messages, matched by (peer, tag) in the order of sending. `peer`: a rank of this group.
  void send(ConstBuffer buffer, int peer, std::uint32_t tag = 0,
            const CollectiveOptions& options = {});
  // `peer` may be kAnySource. Returns the sender's rank.
  int recv(Buffer buffer, int peer, std::uint32_t tag = 0, const CollectiveOptions& options = {});
  // As send() and recv(), but returns at once; Work::source_rank() is the sender's rank.
  WorkPtr isend(ConstBuffer buffer, int peer, std::uint32_t tag = 0,
                const CollectiveOptions& options = {});
  WorkPtr irecv(Buffer buffer, int peer, std::uint32_t tag = 0,
                const CollectiveOptions& options = {});

 private:
  WorkPtr carry_out(const Call& call, const CollectiveOptions& options);

  // EngineGroup (engine_group.h) implements these.
  virtual void run(const Call& call, const CallOptions& options) = 0;
  virtual WorkPtr start(const Call& call, const CallOptions& options) = 0;
  virtual int recv(const Call& call, const CallOptions& options) = 0;
};

}  // namespace paceline
