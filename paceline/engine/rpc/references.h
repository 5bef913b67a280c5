#pragma once

// References to objects on other workers: the rules of holds, as state machines (ObjectHolds,
// ReferenceCounts), and the table that carries them out by calls (ReferenceTable).
//
// Every worker that refers to an object has a hold at the object's owner; an object without holds
// is destroyed. Requests for holds and releases are kOnce calls in the holder's session with the
// owner, so they arrive once and in order, and all holds of a session end with the session
// (protocol/session.h). All copies of a reference within a worker share one hold.
//
// Passing a reference on. The sender keeps its hold until the call that carries the reference has
// ended. The receiver asks the owner for a hold of its own before it runs the handler, so the
// receiver has a hold when the reply arrives. If the outcome of the call is unknown, the sender
// keeps its hold for one more lease, which gives the receiver time to ask. begin_call() and
// tell_call() follow this rule when they send a request with references.
//
// Thread safety: only ReferenceTable is thread-safe.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "paceline/engine/core/deadline.h"
#include "paceline/engine/rpc/caller.h"
#include "paceline/engine/rpc/calls.h"
#include "paceline/engine/rpc/protocol/session.h"

namespace paceline::rpc {

// The holder's number for a reference that travels in a call.
using PassNumber = std::uint64_t;

// The owner's side: which sessions hold each object.
class ObjectHolds {
 public:
  using Destroyed = std::vector<ObjectNumber>;

  // Adds an object, held by the session that requested it. Returns false if the number is taken.
  bool create(ObjectNumber object, SessionNumber holder);
  // Adds a hold; a second hold of the same session has no effect. Returns false if the object
  // does not exist.
  bool hold(ObjectNumber object, SessionNumber holder);
  // Ends a hold, and appends the object to `destroyed` if that was its last hold. Has no effect on
  // an object that the session does not hold.
  void release(ObjectNumber object, SessionNumber holder, Destroyed& destroyed);
  // Ends all holds of a session that was closed, was lost or has expired.
  void end_session(SessionNumber holder, Destroyed& destroyed);

  bool exists(ObjectNumber object) const { return num_holders_.contains(object); }
  std::size_t num_objects() const { return num_holders_.size(); }

 private:
  std::unordered_map<ObjectNumber, std::uint32_t> num_holders_;
  std::unordered_map<SessionNumber, std::unordered_set<ObjectNumber>> held_;
};

// The holder's side, for the objects of one owner.
class ReferenceCounts {
 public:
  // A request to the owner, sent as a call with kOnce and kThisSession.
  struct Step {
    enum class Kind : std::uint8_t { kHold, kRelease } kind{};
    ObjectNumber object = 0;
    std::uint64_t hold = 0;  // for kHold: the request's number, for held() or refused()
  };
  using Steps = std::vector<Step>;

  // A reference arrived in a message.
  void receive(ObjectNumber object, Steps& steps);
  // This worker creates the object; the owner makes this worker's hold together with the object.
  void receive_held(ObjectNumber object);
  // The owner's answers. A refused hold means that the object had been destroyed; the copies then
  // refer to nothing.
  void held(ObjectNumber object, std::uint64_t hold);
  void refused(ObjectNumber object, std::uint64_t hold);
  // copy() adds a copy within this worker; it requires has(object). drop() ends a copy, which may
  // refer to nothing.
  void copy(ObjectNumber object) { ++references_.at(object).copies; }
  void drop(ObjectNumber object, Steps& steps);

  // A call carries a copy to another worker. Keeps the hold until passed() is called with the
  // returned number. Requires: has(object).
  PassNumber pass(ObjectNumber object);
  // The call has ended. With CallEnd::kUnknown the hold is kept until `keep_until`.
  void passed(PassNumber pass, CallEnd end, LeaseTime keep_until, Steps& steps);
  // Drops the copies that passed() kept and whose `keep_until` has passed.
  void look(LeaseTime now, Steps& steps);

  // The session is lost, so all copies now refer to nothing. Later references belong to the next
  // session, so drop() must no longer be called for the older copies.
  void lose_all();

  bool has(ObjectNumber object) const { return references_.contains(object); }
  // Whether the owner has confirmed the hold: the object then exists while the lease is valid.
  bool is_held(ObjectNumber object) const;
  std::size_t num_objects() const { return references_.size(); }

 private:
  struct Reference {
    std::uint32_t copies = 0;  // copies, and calls that carry a copy
    bool is_held = false;
    std::uint64_t hold = 0;  // the last hold that was requested
  };
  std::unordered_map<ObjectNumber, Reference> references_;
  std::unordered_map<PassNumber, ObjectNumber> passing_;
  std::multimap<LeaseTime, ObjectNumber> kept_until_;
  std::uint64_t last_hold_ = 0;
  PassNumber last_pass_ = 0;
};

class ReferenceTable;

// One copy of a reference in the sense of ReferenceCounts. The copies of a RemoteRef share it.
class ReferenceHandle {
 public:
  ReferenceHandle(std::weak_ptr<ReferenceTable> of, ObjectId of_object, std::uint64_t of_sessions)
      : table(std::move(of)), id(std::move(of_object)), generation(of_sessions) {}
  ~ReferenceHandle();
  ReferenceHandle(const ReferenceHandle&) = delete;
  ReferenceHandle& operator=(const ReferenceHandle&) = delete;

  const std::weak_ptr<ReferenceTable> table;
  const ObjectId id;
  const std::uint64_t generation;  // counts the sessions with the owner
  PendingPointer creation{};       // the call that makes the object, if this worker sent it
};
using HandlePointer = std::shared_ptr<ReferenceHandle>;

// A random number for a new object.
ObjectNumber new_object_number();

// Requests and replies of the built-in methods.
struct ObjectList {
  std::vector<ObjectNumber> numbers;
  static auto fields(auto& self) { return std::tie(self.numbers); }
};
struct ObjectStates {
  std::vector<std::uint8_t> exist;
  static auto fields(auto& self) { return std::tie(self.exist); }
};
inline constexpr std::string_view kHoldMethod = "paceline.hold",
                                  kReleaseMethod = "paceline.release";

// The references of this worker to objects of other workers and of its own. The table carries out
// the steps of ReferenceCounts by calls of the built-in methods "hold" and "release". Releases are
// collected and sent about ten times a second, so dropping a reference never waits.
//
// Lock order: a thread may take mutex_ while it holds the mutex of a Caller, not the other way
// round.
//
// Thread safety: every method may be called from any thread.
class ReferenceTable : public std::enable_shared_from_this<ReferenceTable> {
 public:
  using FindCaller = std::function<std::shared_ptr<Caller>(const std::string& owner)>;
  ReferenceTable(std::string self, LeaseTime lease, FindCaller find_caller);

  // Makes a reference to a new object; the calling function then sends the call that creates it.
  HandlePointer created(const ObjectId& id);
  // Takes a reference that arrived in a message, and begins to ask the owner for a hold.
  HandlePointer receive(const ObjectId& id);
  // Waits for the owners' answers until the deadline. A refused reference fails when it is used.
  void confirm(const std::vector<HandlePointer>& references, Deadline deadline);
  // The Caller for the object's owner. Throws ReferenceError for a reference that can no longer be
  // used.
  std::shared_ptr<Caller> caller_of(const ReferenceHandle& reference, std::string_view method);

  // Waits, at most until the deadline, for the owners to make the objects that this worker creates:
  // an owner refuses other workers' holds on an object that it has not made yet.
  void await_creation(const std::vector<HandlePointer>& references, Deadline deadline);
  // A call carries the references. Their holds are kept until the returned function is called with
  // the call's CallEnd. Throws Error(kInvalid) for references of another worker.
  std::function<void(CallEnd)> pass(const std::vector<HandlePointer>& references);
  // A reply or a one-way message carries the references. Their holds are kept for one lease.
  void pass_on(const std::vector<HandlePointer>& references);

  // The owner of an object; a later worker of the same name is another owner.
  struct OwnerId {
    std::string name;
    std::string incarnation;
    auto operator<=>(const OwnerId&) const = default;
  };
  // Call this when the owner no longer keeps any state of this worker. References to objects of a
  // later process of the same name stay valid.
  void lose(const OwnerId& owner);
  // Sends releases and takes answers that no thread waits for; called about ten times a second.
  void look();
  std::size_t num_objects() const;

 private:
  friend class ReferenceHandle;
  struct Asked {
    std::uint64_t hold = 0;
    PendingPointer call;
  };
  struct Owner {
    ReferenceCounts counts;
    std::uint64_t generation = 0;
    std::vector<ObjectNumber> to_release;
    std::unordered_map<ObjectNumber, Asked> asked;  // requested holds without an answer yet
  };
  static OwnerId owner_of(const ObjectId& id) { return {id.owner, id.incarnation}; }
  void drop(const ReferenceHandle& reference);
  static void note_releases_locked(Owner& owner, const ReferenceCounts::Steps& steps);
  void ask(const OwnerId& owner, const ReferenceCounts::Step& hold);
  static void settle_locked(Owner& owner, ObjectNumber object);
  void send_releases(const OwnerId& owner, bool now);

  const std::string self_;
  const LeaseTime lease_;
  const FindCaller find_caller_;

  std::mutex asking_;         // one message to the owners at a time, to keep their order
  mutable std::mutex mutex_;  // guards the members below
  std::map<OwnerId, Owner> owners_;
};

// Begins a call, and keeps the holds of the references in its request until the call has ended.
PendingPointer begin_call(Caller& caller, ReferenceTable& references, const CallTarget& target,
                          detail::RequestMaker request, Deadline deadline);
// Like begin_call(), for a one-way message. The sender never learns when the message arrives, so
// the holds of the message's references are kept for one lease. Waits until the deadline for
// objects that are being created.
void tell_call(Caller& caller, ReferenceTable& references, const CallTarget& target,
               detail::RequestMaker request, Deadline deadline);

}  // namespace paceline::rpc
