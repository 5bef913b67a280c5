#pragma once

// A group of ranks that communicate with each other, with the names and semantics of
// torch.distributed, for raw buffers; paceline/training/tensor does the same for
// torch::Tensor. init_process_group.h makes the first group of a program.
//
//   auto group = paceline::init_process_group();
//   group->all_reduce(std::span(gradients), ReduceOp::kSum);
//
// Rules. All ranks make the same collective calls in the same order, with the same operation, type,
// count and root; otherwise every rank gets an error that shows both calls: kInvalid, or kAborted
// with the cause. A sum has the same bits on every rank and over every transport, unless another
// backend or the ring algorithm is chosen. An error in a running operation fails the group: later
// calls throw the cause, and a new group is needed. A refused call does no harm.
//
// Roots and peers are ranks of the called group, as rank() returns them. In a group made by
// new_group() or split() they may differ from ranks of the world, which torch.distributed's
// functions take. world_ranks() contains the world rank of each rank of the group.
//
// Buffers of all ranks that together exceed the address space cause Error(kInvalid).
//
// Every collective blocks, or returns a Work at once if its options have `.async_op`
// (group_options.h). Asynchronous operations run in order on one thread of the group. In a
// group of one rank every collective is a copy.
//
// Errors of every collective: kInvalid (arguments, mismatch), kUnsupported (operation on this
// type), kTimeout (naming the ranks that are missing), kPeerLost (naming the rank that died),
// kAborted (another rank failed; with its cause).
//
// Thread safety: every method may be called from any thread; collectives are carried out one after
// another.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "paceline/engine/collectives/buffer.h"
#include "paceline/engine/collectives/group/group_options.h"
#include "paceline/engine/collectives/hosts.h"
#include "paceline/engine/collectives/op.h"
#include "paceline/engine/collectives/work.h"
#include "paceline/engine/core/error.h"

namespace paceline {

struct Call;
struct CallOptions;

class ProcessGroup {
 public:
  virtual ~ProcessGroup() = default;

  // Whether this rank is a member. If not, only the accessors up to name_of_member(), options(),
  // timeout() and timeline() work; every other call throws Error(kInvalid).
  virtual bool is_member() const = 0;
  virtual int rank() const = 0;  // -1 if this rank is not a member
  virtual int world_size() const = 0;
  virtual int local_rank() const = 0;
  virtual const std::string& name() const = 0;
  // The members' ranks in the world, in order.
  virtual const std::vector<int>& world_ranks() const = 0;
  // The names of this rank, and of each rank of the group, in errors: the number in the group and,
  // if it differs, the number in the world: "rank 1 (rank 3 of the world)".
  virtual const std::string& self() const = 0;
  virtual std::string name_of_member(std::size_t rank) const = 0;
  // The backend that carries out the collectives, as parse_backend_choice() takes it: "paceline",
  // "gloo", ...
  virtual std::string backend() const = 0;
  // "shm", "loopback", "tcp", "mpi", ..., or "none" for a group of one rank.
  virtual std::string transport() const = 0;
  virtual const GroupOptions& options() const = 0;
  virtual std::chrono::milliseconds timeout() const = 0;
  virtual const Hosts& hosts() const = 0;
  // Records spans of this rank (engine/telemetry/phase_times.h); null if no timeline was requested.
  virtual const std::shared_ptr<Timeline>& timeline() const = 0;
  // Explains to the user which algorithm a call would use, and why.
  virtual std::string explain(Op op, Dtype dtype, std::size_t count) const = 0;
  virtual bool supports(Op op, Dtype dtype, ReduceOp reduce_op = ReduceOp::kSum,
                        Device device = Device::kCpu) const = 0;

  // Collective: every rank gets `bytes` (at least 1) of zeroed memory on which collectives need no
  // copies, except small and coalesced calls (docs/network.md).
  virtual SymmetricBuffer allocate_symmetric(std::size_t bytes,
                                             const CollectiveOptions& options = {}) = 0;
  // Like allocate_symmetric(), for large areas: a page takes memory when it is first touched.
  // Forked children cannot see the area.
  virtual SymmetricBuffer reserve_symmetric(std::size_t bytes,
                                            const CollectiveOptions& options = {}) = 0;
  // Local: whether collectives on this memory need no copies, provided that the other ranks' memory
  // is symmetric as well.
  virtual bool is_symmetric(ConstBuffer buffer) = 0;

  // Collective over the *whole* group, including ranks that do not become members, in the same
  // order on all ranks, as in PyTorch. `ranks` are ranks of this group, without duplicates; their
  // order becomes the new order. The other ranks get a group without being its members
  // (is_member() is false). The call begins like any other collective of this group, so the ranks
  // notice, within the new group's timeout, a rank that makes a different call, names different
  // members or has died. Error(kInvalid) for different members is thrown on every rank, and this
  // group can continue.
  virtual std::shared_ptr<ProcessGroup> new_group(
      const std::vector<int>& ranks, const std::optional<GroupOptions>& options = {}) = 0;
  // Collective: ranks with the same `color` form a group, ordered by `key`, then by rank. Ranks
  // with a negative color belong to no group; they get a group without ranks. `label`, which must
  // be the same on every rank, becomes a part of the groups' names in messages.
  virtual std::shared_ptr<ProcessGroup> split(int color, int key,
                                              const std::optional<GroupOptions>& options = {},
                                              std::string_view label = {}) = 0;

  // Local; may be called from any thread. Fails the operations under way on this rank and sends
  // `reason` to the other ranks.
  virtual void abort(const std::string& reason) = 0;

  // The operations, in torch.distributed's order of arguments: output, input, other arguments,
  // options. Each blocks and returns a Work that has completed, or with `.async_op` returns a Work
  // at once (group_options.h).
  //
  // The buffers of an operation must not overlap, except as the operation allows; otherwise
  // Error(kInvalid).
  //
  // Replaces every rank's elements by their reduction.
  WorkPtr all_reduce(Buffer buffer, ReduceOp op = ReduceOp::kSum,
                     const CollectiveOptions& options = {});
  // As above, from `input` to `output`, which have the same count.
  WorkPtr all_reduce(Buffer output, ConstBuffer input, ReduceOp op,
                     const CollectiveOptions& options = {});
  // Replaces the elements of every rank by the root's. `root`, here and below: a rank of this
  // group.
  WorkPtr broadcast(Buffer buffer, int root, const CollectiveOptions& options = {});
  // The root's `buffer` gets the result; the other ranks' buffers stay unchanged.
  WorkPtr reduce(Buffer buffer, int root, ReduceOp op = ReduceOp::kSum,
                 const CollectiveOptions& options = {});

  // output.count == input.count * world_size; rank r's elements begin at r * input.count. `input`
  // may be this rank's block of `output`.
  WorkPtr all_gather(Buffer output, ConstBuffer input, const CollectiveOptions& options = {});
  // Like all_gather, but only the root gets the blocks; the other ranks pass an empty output.
  WorkPtr gather(Buffer output, ConstBuffer input, int root, const CollectiveOptions& options = {});
  // Root's block r goes to rank r: input.count == output.count * world_size at root; other ranks
  // pass an empty input. `output` may be root's own block of `input`.
  WorkPtr scatter(Buffer output, ConstBuffer input, int root,
                  const CollectiveOptions& options = {});
  // Rank r gets the reduction of every rank's block r: input.count == output.count * world_size.
  // `output` may be this rank's block of `input`, whose other blocks stay unchanged.
  WorkPtr reduce_scatter(Buffer output, ConstBuffer input, ReduceOp op = ReduceOp::kSum,
                         const CollectiveOptions& options = {});
  // Block r of `input` goes to rank r, where it becomes block rank() of `output`. The buffers must
  // not overlap.
  WorkPtr all_to_all(Buffer output, ConstBuffer input, const CollectiveOptions& options = {});

  // Like all_gather, with a count for each rank: rank r gives counts[r] elements, which follow
  // those of the ranks before it.
  WorkPtr all_gather_v(Buffer output, ConstBuffer input, std::span<const std::size_t> counts,
                       const CollectiveOptions& options = {});
  // Like reduce_scatter, with a count for each rank: rank r gets the reduction of every rank's
  // block r, which has counts[r] elements.
  WorkPtr reduce_scatter_v(Buffer output, ConstBuffer input, std::span<const std::size_t> counts,
                           ReduceOp op = ReduceOp::kSum, const CollectiveOptions& options = {});
  // Like all_to_all, with a count for each pair: receive_counts[r] elements come from rank r, and
  // rank r gets the send_counts[r] elements of block r of `input`. The ranks first exchange their
  // counts, in the time of a small all_gather. If two ranks disagree, the group fails before any
  // element moves: ranks throw Error(kInvalid), or kAborted with the cause.
  WorkPtr all_to_all_v(Buffer output, ConstBuffer input,
                       std::span<const std::size_t> receive_counts,
                       std::span<const std::size_t> send_counts,
                       const CollectiveOptions& options = {});

  // One operation on many buffers of one type, as if they lay one after the other: a call on many
  // small buffers costs as much as a call on one buffer. Elements in CPU memory are copied, a few
  // megabytes at a time. All ranks pass lists of the same counts.
  WorkPtr all_reduce_coalesced(std::span<const Buffer> buffers, ReduceOp op = ReduceOp::kSum,
                               const CollectiveOptions& options = {});
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
  // Like send() and recv(), but returns at once; Work::source_rank() is the sender's rank.
  WorkPtr isend(ConstBuffer buffer, int peer, std::uint32_t tag = 0,
                const CollectiveOptions& options = {});
  WorkPtr irecv(Buffer buffer, int peer, std::uint32_t tag = 0,
                const CollectiveOptions& options = {});

 private:
  friend class EngineGroup;  // the only implementation
  ProcessGroup() = default;

  WorkPtr carry_out(const Call& call, const CollectiveOptions& options);

  virtual void run(const Call& call, const CallOptions& options) = 0;
  virtual WorkPtr start(const Call& call, const CallOptions& options) = 0;
  virtual int recv(const Call& call, const CallOptions& options) = 0;
};

// The group as an argument of a function: a ProcessGroup, or a shared pointer to one, such as the
// result of init_process_group(). A function that keeps the group beyond the call takes the shared
// pointer itself.
class GroupRef {
 public:
  GroupRef(ProcessGroup& group) : group_(&group) {}
  // Error(kInvalid) for a null pointer.
  GroupRef(const std::shared_ptr<ProcessGroup>& group) : group_(group.get()) {
    if (group_ == nullptr) throw Error(ErrorCode::kInvalid, "a null pointer was given as a group");
  }

  ProcessGroup& operator*() const { return *group_; }
  ProcessGroup* operator->() const { return group_; }
  operator ProcessGroup&() const { return *group_; }

 private:
  ProcessGroup* group_;  // lives at least as long as the call
};

namespace detail {

// Returns `group`. Error(kInvalid) for a null pointer; the message names `user`, the called class.
std::shared_ptr<ProcessGroup> require_group(std::shared_ptr<ProcessGroup> group, const char* user);

}  // namespace detail

// Collective: reduces a single value in CPU memory, for example the number of correct answers, and
// returns the result on every rank.
template <class T>
T all_reduce_value(GroupRef group, T value, ReduceOp op = ReduceOp::kSum) {
  group->all_reduce(std::span<T>(&value, 1), op);
  return value;
}

}  // namespace paceline
