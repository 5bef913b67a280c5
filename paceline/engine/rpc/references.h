#pragma once

// References to objects on other workers: the rules of holds, as state machines (ObjectHolds,
// ReferenceCounts), and the table that carries them out by calls (ReferenceTable).
//
// Every holder has its own hold with the owner of the object; an object without holds is destroyed.
// Hold and release are calls of kOnce of the holder's session with the owner, so they arrive once
// and in order, and all holds of a session end with it (protocol/session.h). Within a worker any
// number of copies of a reference share one hold.
//
// Passing a reference on. The sender keeps its hold until the call that carries the reference has
// ended. The receiver asks the owner for a hold of its own before it runs the handler, so when the
// reply arrives it has one. If the outcome of the call is unknown, the sender keeps its hold for
// one more lease: for so long the receiver has time to ask.
//
// Thread safety: none, but of ReferenceTable.

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
#include "paceline/engine/rpc/protocol/session.h"

namespace paceline::rpc {

// The holder's own number of a reference on its way in a call.
using PassNumber = std::uint64_t;

// The owner's side: which sessions hold each object.
class ObjectHolds {
 public:
  using Destroyed = std::vector<ObjectNumber>;

  // A new object, held by the session that asked for it. False if the number is taken.
  bool create(ObjectNumber object, SessionNumber holder);
  // False for an object that has been destroyed. Holding it twice is holding it once.
  bool hold(ObjectNumber object, SessionNumber holder);
  // Appends the object if that was its last hold. Nothing for one that the session does not hold.
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
  // A question to the owner, by a call of kOnce and kThisSession.
  struct Step {
    enum class Kind : std::uint8_t { kHold, kRelease } kind{};
    ObjectNumber object = 0;
    std::uint64_t hold = 0;  // of kHold: which question an answer belongs to
  };
  using Steps = std::vector<Step>;

  // A reference came in a message.
  void receive(ObjectNumber object, Steps& steps);
  // A reference came from create(), with the hold that the owner made for it.
  void receive_held(ObjectNumber object);
  // The owner's answers. The object of a hold that was refused had been destroyed, and copies refer
  // to nothing.
  void held(ObjectNumber object, std::uint64_t hold);
  void refused(ObjectNumber object, std::uint64_t hold);
  // A copy within this worker, and the end of a copy, which may be one that refers to nothing.
  // Requires of copy(): has(object).
  void copy(ObjectNumber object) { ++references_.at(object).copies; }
  void drop(ObjectNumber object, Steps& steps);

  // A call carries a copy to another worker: keeps the hold until passed() with the number that
  // this returns. Requires: has(object).
  PassNumber pass(ObjectNumber object);
  // The call has ended. With CallEnd::kUnknown the hold is kept until `keep_until`.
  void passed(PassNumber pass, CallEnd end, LeaseTime keep_until, Steps& steps);
  // Ends the holds that were kept until now.
  void look(LeaseTime now, Steps& steps);

  // The session is lost: no copy here refers to anything. A reference that comes later belongs to
  // the next session, so copies of before must not be dropped here.
  void lose_all();

  bool has(ObjectNumber object) const { return references_.contains(object); }
  // Whether the owner has confirmed the hold: the object exists while the lease counts.
  bool is_held(ObjectNumber object) const;
  std::size_t num_objects() const { return references_.size(); }

 private:
  struct Reference {
    std::uint32_t copies = 0;  // and calls that carry one
    bool is_held = false;
    std::uint64_t hold = 0;  // the last one that was asked for
  };
  std::unordered_map<ObjectNumber, Reference> references_;
  std::unordered_map<PassNumber, ObjectNumber> passing_;
  std::multimap<LeaseTime, ObjectNumber> kept_until_;
  std::uint64_t last_hold_ = 0;
  PassNumber last_pass_ = 0;
};

class ReferenceTable;

// One copy of a reference; the RemoteRefs of a program share it.
class ReferenceHandle {
 public:
  ReferenceHandle(std::weak_ptr<ReferenceTable> of, ObjectId of_object, std::uint64_t of_sessions)
      : table(std::move(of)), id(std::move(of_object)), generation(of_sessions) {}
  ~ReferenceHandle();
  ReferenceHandle(const ReferenceHandle&) = delete;
  ReferenceHandle& operator=(const ReferenceHandle&) = delete;

  const std::weak_ptr<ReferenceTable> table;
  const ObjectId id;
  const std::uint64_t generation;  // of the sessions with the owner
  PendingPointer creation{};       // the call that makes the object, if this worker did
};
using HandlePointer = std::shared_ptr<ReferenceHandle>;

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

// The references that this worker has to objects of others, and of its own: carries out what
// ReferenceCounts says, by calls of the built-in methods "hold" and "release". Releases are
// collected for up to a tenth of a second, so letting go of a reference never waits.
//
// Locks: a caller's mutex may be held when this one is taken, not the other way round.
//
// Thread safety: all methods.
class ReferenceTable : public std::enable_shared_from_this<ReferenceTable> {
 public:
  using FindCaller = std::function<std::shared_ptr<Caller>(const std::string& owner)>;
  ReferenceTable(std::string self, LeaseTime lease, FindCaller find_caller);

  // For an object that the caller of this creates at once, over the caller returned with it.
  HandlePointer created(const ObjectId& id);
  // A reference came in a message: begins to ask the owner for a hold.
  HandlePointer receive(const ObjectId& id);
  // Waits for the answers. What is not held afterwards says so when it is used.
  void confirm(const std::vector<HandlePointer>& references, Deadline deadline);
  // The way to the object's owner. ReferenceError for one that cannot be used any more.
  std::shared_ptr<Caller> caller_of(const ReferenceHandle& reference, std::string_view method);

  // Waits until the owner has made the objects that this worker creates: before that it would
  // refuse others a hold.
  void await_creation(const std::vector<HandlePointer>& references, Deadline deadline);
  // A call carries the references: their holds are kept until the function returned has been
  // called with its end. Error(kInvalid) for references of another worker.
  std::function<void(CallEnd)> pass(const std::vector<HandlePointer>& references);
  // A reply or a told message carries them: their holds are kept for one lease.
  void pass_on(const std::vector<HandlePointer>& references);

  // The owner keeps nothing of this worker any more.
  void lose(const std::string& owner);
  // Releases, and answers that no thread waits for; about ten times a second.
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
    std::unordered_map<ObjectNumber, Asked> asked;  // for a hold, without an answer yet
  };
  void drop(const ReferenceHandle& reference);
  static void note_releases_locked(Owner& owner, const ReferenceCounts::Steps& steps);
  void ask(const std::string& owner, const ReferenceCounts::Step& hold);
  static void settle_locked(Owner& owner, ObjectNumber object);
  void send_releases(const std::string& owner, bool now);

  const std::string self_;
  const LeaseTime lease_;
  const FindCaller find_caller_;

  std::mutex asking_;         // one message at a time to the owners, so that they keep their order
  mutable std::mutex mutex_;  // guards what follows
  std::map<std::string, Owner> owners_;
};

}  // namespace paceline::rpc
