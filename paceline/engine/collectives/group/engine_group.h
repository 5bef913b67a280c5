#pragma once

// The only implementation of ProcessGroup. engine() gives other parts of the library access to
// features that users do not need: calls as values, visits, the timeline, the launcher's variables.
//
// Thread safety: every method may be called from any thread; collectives are carried out one after
// another.

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "paceline/engine/collectives/backend.h"
#include "paceline/engine/collectives/call.h"
#include "paceline/engine/collectives/flight/group_flight.h"
#include "paceline/engine/collectives/group/call_order.h"
#include "paceline/engine/collectives/group/process_group.h"
#include "paceline/engine/collectives/purpose.h"
#include "paceline/engine/core/system/host.h"
#include "paceline/engine/rendezvous/rendezvous.h"
#include "paceline/engine/telemetry/crash_reporter.h"

namespace paceline {

class FailureDomain;
class SymmetricRegistry;

class EngineGroup final : public ProcessGroup {
 public:
  // The state that a group shares with the group from which it is made.
  struct Parent {
    std::function<std::vector<int>()> look_after;  // ConnectOptions::look_after_parent
    std::shared_ptr<SymmetricRegistry> symmetric;
    std::shared_ptr<FailureDomain> failures;
  };
  // Collective: connects the ranks that met in `rendezvous`. `name` and `world_ranks` define which
  // part of the world the group is.
  EngineGroup(Rendezvous rendezvous, std::string name, std::vector<int> world_ranks,
              const GroupOptions& options, const Parent& parent = {});
  // Ends the operations under way with Error(kAborted).
  ~EngineGroup() override;
  EngineGroup(const EngineGroup&) = delete;
  EngineGroup& operator=(const EngineGroup&) = delete;

  bool is_member() const override { return rank_ >= 0; }
  int rank() const override { return rank_; }
  int world_size() const override { return static_cast<int>(world_ranks_.size()); }
  int local_rank() const override { return rendezvous_.environment.local_rank; }
  const std::string& name() const override { return name_; }
  const std::vector<int>& world_ranks() const override { return world_ranks_; }
  const std::string& self() const override { return self_; }
  std::string name_of_member(std::size_t rank) const override;
  std::string backend() const override { return backend_for("backend").name(); }
  std::string transport() const override { return backend_for("transport").transport(); }
  const GroupOptions& options() const override { return options_; }
  std::chrono::milliseconds timeout() const override {
    return options_.timeout.value_or(GroupOptions::kDefaultTimeout);
  }
  const Hosts& hosts() const override { return backend_for("hosts").hosts(); }
  const std::shared_ptr<Timeline>& timeline() const override { return options_.timeline; }
  std::string explain(Op op, Dtype dtype, std::size_t count) const override {
    return backend_for("explain").explain({op, dtype, count});
  }
  bool supports(Op op, Dtype dtype, ReduceOp reduce_op, Device device) const override;
  SymmetricBuffer allocate_symmetric(std::size_t bytes, const CollectiveOptions& options) override;
  SymmetricBuffer reserve_symmetric(std::size_t bytes, const CollectiveOptions& options) override;
  bool is_symmetric(ConstBuffer buffer) override;
  std::shared_ptr<ProcessGroup> new_group(const std::vector<int>& ranks,
                                          const std::optional<GroupOptions>& options) override;
  std::shared_ptr<ProcessGroup> split(int color, int key,
                                      const std::optional<GroupOptions>& options,
                                      std::string_view label) override;
  void abort(const std::string& reason) override;

  const LaunchEnvironment& launch_environment() const { return rendezvous_.environment; }

  // Carries out a call: run() blocks, start() returns a Work. The buffers of a call must not
  // overlap, except as the operation allows; otherwise Error(kInvalid).
  void run(const Call& call, const CallOptions& options = {}) override;
  WorkPtr start(const Call& call, const CallOptions& options = {}) override;
  // Whether sends and receives take buffers in memory of `device`.
  bool takes_messages(Device device) const {
    return backend_for("messages").takes_messages(device);
  }
  // Like run() of a kReceive; returns the sender's rank, as Work::source_rank() does.
  int recv(const Call& call, const CallOptions& options = {}) override;
  using ProcessGroup::recv;

  // The barrier at the beginning of a function that all ranks must call. If a rank makes another
  // call instead, the ranks' errors name the function (purpose.h).
  void enter(std::string_view function) {
    run({.op = Op::kBarrier, .shape = purpose_of(function)});
  }

  // Keeps the error of a call that this rank has refused, because the other ranks do not know of
  // the refusal. If this rank leaves the group while other ranks wait for it, their errors contain
  // the text of the kept error.
  void note_refusal(const Error& error) const;

  // Visits the buffers of all ranks, which have the same type and count (call.h): each rank's body
  // works on its visited_block() of every buffer, in place for symmetric memory on one host,
  // otherwise on copies. An exception from the body is thrown on this rank and fails the group: the
  // other ranks get kAborted. start_visit() runs the body on the group's thread. The body must not
  // use the group.
  void visit(Buffer buffer, const VisitBody& body, const CallOptions& options = {});
  WorkPtr start_visit(Buffer buffer, VisitBody body, const CallOptions& options = {});

  // Starts sends and receives together, as in torch.distributed: `messages` are kSend and kReceive
  // calls, in any order, to and from any ranks, and no message waits for another. All are checked
  // before the first one starts. The Works are in the order of the messages.
  std::vector<WorkPtr> batch_isend_irecv(std::span<const Call> messages,
                                         const CallOptions& options = {});

 private:
  using Operation = CallOrder::Operation;
  using Then = std::function<void(const Fingerprint& fingerprint, const WaitOptions& wait)>;
  struct Coalesced;  // a call on many buffers

  Collective make(const Call& call) const;
  Operation prepare(const Call& call, const CallOptions& options);
  Collective with_order(Collective call, const std::shared_ptr<const DeviceOrder>& order,
                        const WaitOptions& wait) const;
  void warn_of_pending_operations() const;
  void require_addressable(std::string_view what, Dtype dtype, std::size_t count, int blocks) const;
  void require_collective(const Collective& call, ConstBuffer input, Buffer output) const;
  Operation prepare_with_counts(const Call& call, const CallOptions& options);
  Operation prepare_all_to_all_v(const Call& call, const CallOptions& options);
  std::vector<std::size_t> agree_on_counts(std::span<const std::size_t> mine,
                                           const WaitOptions& wait);
  Operation prepare_coalesced(const Call& call, const CallOptions& options);
  void run_coalesced(const Coalesced& call, const WaitOptions& wait);
  void require_own_process(std::string_view what) const;
  void require_member(std::string_view what) const;
  Backend& backend_for(std::string_view what) const {
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
  Operation prepare_visit(Buffer buffer, VisitBody body);
  void visit_block(const Collective& call, const VisitBody& body, const VisitedBlock& block,
                   std::vector<std::byte*> data, std::size_t offset);
  void visit_copies(const Collective& visit, const VisitBody& body, const WaitOptions& wait);
  SymmetricBuffer allocate(std::size_t bytes, Pages pages, const CallOptions& options);
  void require_time(const CallOptions& options) const;
  Deadline deadline_of(const CallOptions& options) const;
  Error ending(ErrorCode code, const std::string& text) const;
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
  const LastWords last_words_;        // tells the other ranks of an uncaught exception
  int num_children_ = 0;              // calls of new_group and split so far; the same on every rank
  // The rendezvous of the groups made from this one, if it is not rendezvous_; used only by the
  // thread that runs operations.
  std::optional<Rendezvous> own_meeting_;
  // Number of the last collective; changed only by the thread that runs operations.
  std::atomic<std::uint32_t> sequence_ = 0;
  // The buffer into which coalesced calls copy a few megabytes at a time; used only by the thread
  // that runs operations.
  std::vector<std::byte> flat_;
  // The last call that this rank refused, and the number of the collective before it.
  struct Refusal {
    std::string text;
    std::uint32_t after = 0;
  };
  mutable std::mutex refusal_mutex_;  // guards refusal_
  mutable Refusal refusal_;
  std::atomic<std::thread::id> visitor_;  // the thread that runs a visit's body

  CallOrder order_;  // the last member, because its thread uses the other members
};

// Throws Error(kInvalid), which names no rank, for values that no group can have: a timeout below
// 1 ms, a host's name that is too long.
void require_possible(const GroupOptions& options);

// The group as its implementation: every ProcessGroup is an EngineGroup, because only an
// EngineGroup can construct one.
inline EngineGroup& engine(ProcessGroup& group) { return static_cast<EngineGroup&>(group); }
inline const EngineGroup& engine(const ProcessGroup& group) {
  return static_cast<const EngineGroup&>(group);
}

}  // namespace paceline
