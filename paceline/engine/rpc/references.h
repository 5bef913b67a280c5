#pragma once

// References to objects on other workers: who holds what.
//
// Every holder has its own hold with the owner of the object; an object without holds is destroyed.
// Hold and release are calls of kOnce of the holder's session with the owner, so they arrive once
// and in order, and all holds of a session end with it (lease.h). Within a worker any number of
// copies of a reference share one hold.
//
// Passing a reference on. The sender keeps its hold until the call that carries the reference has
// ended. The receiver asks the owner for a hold of its own before it runs the handler, so when the
// reply arrives it has one. If the outcome of the call is unknown, the sender keeps its hold for
// one more lease: for so long the receiver has time to ask.
//
// Thread safety: none.

#include <cstdint>
#include <map>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "paceline/engine/rpc/lease.h"
#include "paceline/engine/rpc/object_id.h"
#include "paceline/engine/rpc/session.h"

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

}  // namespace paceline::rpc
