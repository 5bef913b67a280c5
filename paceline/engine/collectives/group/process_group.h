#pragma once

// A group of ranks that communicate with each other, with the names and semantics of
// torch.distributed, for raw buffers (operations.h); paceline/training/tensor does the same for
// torch::Tensor. This header also declares init_process_group(), the first line of a distributed
// program.
//
//   auto group = paceline::init_process_group();
//   group->all_reduce(std::span(gradients), ReduceOp::kSum);
//
// Rules. All ranks of the group make the same collective calls in the same order, with the same
// operation, type, count and root; otherwise every rank gets Error(kInvalid) (or kAborted with the
// cause) that shows both calls. A sum has the same bits on every rank and over every transport
// (kernels/reduce.h), unless another backend is chosen. After an error the group is finished: every
// later call throws the cause, and the program must make a new group.
//
// Roots and peers are ranks of the called group, as rank() returns them. In a group made by
// new_group() or split() they differ from ranks of the world, which torch.distributed's functions
// take. world_ranks() contains the world rank of each rank of the group.
//
// A buffer that is larger than the address space, alone or together with those of all other ranks,
// causes Error(kInvalid).
//
// Every collective comes in two forms: blocking, and `_async`, which returns a Work at once.
// Asynchronous operations run in order on one thread of the group. In a group of one rank every
// collective is a copy.
//
// Errors of every collective: kInvalid (arguments, mismatch), kUnsupported (operation on this
// type), kTimeout (naming the ranks that are missing), kPeerLost (naming the rank that died),
// kAborted (another rank failed; with its cause).
//
// Thread safety: every method may be called from any thread; calls are carried out one after
// another.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "paceline/engine/collectives/backend.h"
#include "paceline/engine/collectives/buffer.h"
#include "paceline/engine/collectives/call.h"
#include "paceline/engine/collectives/flight/group_flight.h"
#include "paceline/engine/collectives/group/call_order.h"
#include "paceline/engine/collectives/group/group_options.h"
#include "paceline/engine/collectives/group/operations.h"
#include "paceline/engine/core/authentication.h"
#include "paceline/engine/core/system/host.h"
#include "paceline/engine/rendezvous/rendezvous.h"

namespace paceline {

class FailureDomain;
class SymmetricRegistry;

class ProcessGroup : public GroupOperations {
 public:
  // The parts that a group takes over from the group from which it is made.
  struct Parent {
    std::function<std::vector<int>()> look_after;  // ConnectOptions::look_after_parent
    std::shared_ptr<SymmetricRegistry> symmetric;
    std::shared_ptr<FailureDomain> failures;
  };
  // Collective: connects the ranks that met in `rendezvous`. `name` and `world_ranks` define which
  // part of the world the group is. Users call init_process_group(), new_group() or split()
  // instead.
  ProcessGroup(Rendezvous rendezvous, std::string name, std::vector<int> world_ranks,
               const GroupOptions& options, const Parent& parent = {});
  // Ends the operations under way with Error(kAborted).
  ~ProcessGroup() override;
  ProcessGroup(const ProcessGroup&) = delete;
  ProcessGroup& operator=(const ProcessGroup&) = delete;

  // Whether this rank is a member. If it is not (new_group(), split()), only the accessors up to
  // world_ranks() work; every other call throws Error(kInvalid).
  bool is_member() const { return rank_ >= 0; }
  int rank() const { return rank_; }  // -1 if this rank is not a member
  int world_size() const { return static_cast<int>(world_ranks_.size()); }
  int local_rank() const { return rendezvous_.who.local_rank; }
  const std::string& name() const { return name_; }
  const LaunchEnvironment& launch_environment() const { return rendezvous_.who; }
  // The members' ranks in the world, in order.
  const std::vector<int>& world_ranks() const { return world_ranks_; }
  // The names of this rank, and of each rank of the group, in errors: the number in the group and,
  // if it differs, the number in the world: "rank 1 (rank 3 of the world)".
  const std::string& self() const { return self_; }
  std::string name_of_member(std::size_t rank) const;
  // The backend that carries out the collectives, as parse_backend_choice() takes it: "paceline",
  // "gloo", ...
  std::string backend() const { return members("backend").name(); }
  // "shm", "loopback", "tcp", "mpi", ..., or "none" for a group of one rank.
  std::string transport() const { return members("transport").transport(); }
  // The options that the group was made with.
  const GroupOptions& options() const { return options_; }
  std::chrono::milliseconds timeout() const {
    return options_.timeout.value_or(kDefaultGroupTimeout);
  }
  const Hosts& hosts() const { return members("hosts").hosts(); }
  // The timeline; null if none was asked for.
  const std::shared_ptr<Timeline>& timeline() const { return options_.timeline; }
  // Explains which algorithm a call would use, and why, in lines for people.
  std::string explain(Op op, Dtype dtype, std::size_t count) const {
    return members("explain").explain({op, dtype, count});
  }
  bool supports(Op op, Dtype dtype, ReduceOp reduce_op = ReduceOp::kSum,
                Device device = Device::kCpu) const;

  // Every named operation calls one of these functions.
  void run(const Call& call, const CallOptions& options = {}) override;
  WorkPtr start(const Call& call, const CallOptions& options = {}) override;
  int recv(const Call& call, const CallOptions& options = {}) override;
  using GroupOperations::recv;

  // Visits the buffers of all ranks, which have the same type and count (call.h): each rank's body
  // works on its visited_block() of every buffer, in place for symmetric memory on one host,
  // otherwise on copies. An exception from the body is thrown here and finishes the group: the
  // other ranks get kAborted. visit_async() runs the body on the group's thread. The body must not
  // use the group.
  void visit(Buffer buffer, const VisitBody& body, const CallOptions& options = {});
  WorkPtr visit_async(Buffer buffer, VisitBody body, const CallOptions& options = {});

  // Starts sends and receives together, as in torch.distributed: `messages` are kSend and kReceive
  // calls, in any order, to and from any ranks, and no message waits for another. All are checked
  // before the first one starts. The Works are in the order of the messages.
  std::vector<WorkPtr> batch_isend_irecv(std::span<const Call> messages,
                                         const CallOptions& options = {});

  // Collective: every rank gets `bytes` (at least 1) of zeroed memory on which collectives need no
  // copies, except small and coalesced calls (docs/network.md).
  SymmetricBuffer allocate_symmetric(std::size_t bytes, const CallOptions& options = {});
  // Like allocate_symmetric(), for large areas: a page takes memory when it is first touched.
  // Forked children cannot see it.
  SymmetricBuffer reserve_symmetric(std::size_t bytes, const CallOptions& options = {});
  // Local: whether collectives on this memory need no copies, provided that the other ranks' memory
  // is symmetric as well.
  bool is_symmetric(ConstBuffer buffer);

  // Collective over the *whole* group, including ranks that do not become members, in the same
  // order on all ranks, as in PyTorch. `ranks` are ranks of this group, without duplicates; their
  // order becomes the new order. The other ranks get a group of which they are not members
  // (is_member()). The call begins like any other collective of this group, so the ranks notice a
  // rank that makes a different call, names different members or has died; this takes at most the
  // new group's timeout. Error(kInvalid) for different members is thrown on every rank, and this
  // group can continue.
  std::shared_ptr<ProcessGroup> new_group(const std::vector<int>& ranks,
                                          const std::optional<GroupOptions>& options = {});
  // Collective: ranks with the same `color` form a group, ordered by `key`, then by rank. Ranks
  // with a negative color belong to no group; they get a group without ranks. `label`, which must
  // be the same on every rank, becomes a part of the groups' names in messages.
  std::shared_ptr<ProcessGroup> split(int color, int key,
                                      const std::optional<GroupOptions>& options = {},
                                      std::string_view label = {});

  // Local; may be called from any thread. Fails the operations under way on this rank and sends
  // `reason` to the other ranks.
  void abort(const std::string& reason);

 private:
  using Operation = CallOrder::Operation;
  using Then = std::function<void(const Fingerprint& fingerprint, const WaitOptions& wait)>;
  struct Coalesced;  // a call on many buffers

  Collective make(const Call& call) const;
  Operation prepare(const Call& call, const CallOptions& options);
  Collective placed(Collective call, const std::shared_ptr<const DeviceOrder>& order,
                    const WaitOptions& wait) const;
  void warn_of_what_is_under_way() const;
  void require_addressable(std::string_view what, Dtype dtype, std::size_t count, int blocks) const;
  void require_collective(const Collective& call, ConstBuffer input, Buffer output) const;
  Operation counted(const Call& call, const CallOptions& options);
  Operation exchanged(const Call& call, const CallOptions& options);
  std::vector<std::size_t> agree_on_counts(std::span<const std::size_t> mine,
                                           const WaitOptions& wait);
  Operation coalesced(const Call& call, const CallOptions& options);
  void run_coalesced(const Coalesced& call, const WaitOptions& wait);
  void require_own_process(std::string_view what) const;
  void require_member(std::string_view what) const;
  Backend& members(std::string_view what) const {
    require_member(what);
    return *backend_;
  }
  void require_supported(const Collective& call) const;
  PointToPointCall make_message(const Call& call, const CallOptions& options) const;
  WorkPtr post(const Call& call, bool asynchronous, const CallOptions& options);
  void execute(const Collective& call, FlightTicket ticket, const WaitOptions& wait,
               const Then& then = {});
  void run_in_order(Operation operation, const CallOptions& options);
  WorkPtr enqueue(Operation operation, const std::string& description, const CallOptions& options);
  Operation visiting(Buffer buffer, VisitBody body);
  void visit_block(const Collective& call, const VisitBody& body, const VisitedBlock& block,
                   std::vector<std::byte*> data, std::size_t offset);
  void visit_copies(const Collective& visit, const VisitBody& body, const WaitOptions& wait);
  SymmetricBuffer allocate(std::size_t bytes, Pages pages, const CallOptions& options);
  void require_time(const CallOptions& options) const;
  Deadline deadline_of(const CallOptions& options) const;
  // Adds the operation and the group to `error` and, for a timeout, the time limit of the call.
  Error in_context(const Error& error, Op op, Deadline deadline) const;
  std::vector<std::int64_t> gather_for(Op op, std::span<const std::int64_t> mine,
                                       const WaitOptions& wait);
  void require_same_members(const std::vector<int>& ranks, const WaitOptions& wait);
  GroupOptions options_of_child(const std::optional<GroupOptions>& options) const;
  Rendezvous meeting_of_children(Op op, const WaitOptions& wait);
  Rendezvous host_children(Op op, const WaitOptions& wait);
  std::shared_ptr<ProcessGroup> form(const Rendezvous& meeting, const std::string& name,
                                     const std::vector<int>& ranks, const GroupOptions& options);

  const Rendezvous rendezvous_;
  const std::string name_;
  const std::vector<int> world_ranks_;
  const GroupOptions options_;
  const int rank_;
  const std::string self_;
  const std::uint64_t name_hash_;
  const GroupFlight flight_;
  const OwnerProcess owner_;
  // Owners: this group, the groups from which it was made, and the groups made from it.
  const std::shared_ptr<SymmetricRegistry> symmetric_;
  const std::shared_ptr<FailureDomain> failures_;
  std::unique_ptr<Backend> backend_;  // null if this rank is not a member
  int num_children_ = 0;              // groups made by new_group and split; the same on every rank
  // The rendezvous at which these groups form, if it is not this group's; used only by the thread
  // that runs operations.
  std::optional<Rendezvous> own_meeting_;
  // Number of the last collective; used only by the thread that runs operations.
  std::uint32_t sequence_ = 0;
  // The buffer of coalesced calls, for a few megabytes at a time; used only by the thread that runs
  // operations.
  std::vector<std::byte> flat_;
  std::atomic<std::thread::id> visitor_;  // the thread that runs a visit's body

  CallOrder order_;  // the last member, because its thread uses the others
};

// The options of init_process_group(), the first line of a distributed program. The same call works
// in a single process, under `paceline run`, mpirun, srun or torchrun, and with variables that a
// user has set: it finds out which rank this process is and connects it to the others.
struct InitOptions {
  RendezvousOptions rendezvous;
  GroupOptions group;
};

// Collective over the job. Also sets the rank of the log lines. Where the options keep a default,
// variables apply:
//
//   PACELINE_TRANSPORT: the transport (auto, shm, tcp, loopback, ucx), if the options have kAuto;
//   PACELINE_BACKEND: the backend (as parse_backend_choice() takes it), if the options name none;
//   PACELINE_ENCRYPT=1: encrypts the TCP connections, even if the options do not;
//   PACELINE_TCP_STREAMS: the number of connections of each pair (1 to 16), if the options have 1;
//   PACELINE_TIMEOUT: GroupOptions::timeout in seconds (0.001 to a billion), if the options have
//   none; an empty variable sets nothing;
//   PACELINE_FLIGHT_DIR: the directory for the records of operations (flight/group_flight.h);
//   PACELINE_TIMELINE_DIR: the directory for spans (engine/telemetry/timeline.h); set it for all
//   ranks or for none.
//
// An error in these variables or in the options is reported to the other ranks at the rendezvous,
// and is Error(kInvalid) on them as well. Errors: those of rendezvous(), connect_mesh() and
// parse_backend_choice(); kUnsupported for a backend that this build lacks, kInvalid when the ranks
// chose different ones.
std::shared_ptr<ProcessGroup> init_process_group(const InitOptions& options = {});

// A group that another library has decided to form, and that is a part of that library's world:
// torch.distributed names the members and brings a store, in which only they meet.
struct PartOfWorld {
  std::string name;              // names the group in messages; the same on all members
  std::vector<int> world_ranks;  // the members' ranks in the world, in order
  int rank = 0;                  // this process's place among the members
  int world_size = 0;            // ranks of the whole world
  // Shared by the members only, or at least by no other group: the keys contain no name. The
  // members trust it, because the group's secret travels through it.
  std::shared_ptr<Store> store;
  GroupOptions group;
  std::shared_ptr<FailureDomain> failures;  // joins the groups of this process; null for none
};

// Collective over the members: forms the group. Groups of one process need not be made from one
// another. Members need not have been started by any launcher. Where `group` keeps a default, the
// variables of init_process_group() apply, except PACELINE_TIMELINE_DIR. If the launcher's
// variables describe this process with the same rank and world size, the operations are recorded
// for that job. Errors: those of init_process_group(), within the group's timeout.
std::shared_ptr<ProcessGroup> init_part_of_world(const PartOfWorld& part);
std::shared_ptr<FailureDomain> make_failure_domain();

}  // namespace paceline
