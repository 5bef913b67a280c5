#pragma once

// The references that this worker has to objects of others, and of its own: carries out what
// ReferenceCounts says, by calls of the built-in methods "hold" and "release". Releases are
// collected for up to a tenth of a second, so letting go of a reference never waits.
//
// Locks: a caller's mutex may be held when this one is taken, not the other way round.
//
// Thread safety: all methods.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "paceline/engine/core/deadline.h"
#include "paceline/engine/rpc/caller.h"
#include "paceline/engine/rpc/object_id.h"
#include "paceline/engine/rpc/references.h"

namespace paceline::rpc {

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

// What the built-in methods take and give.
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
  // A reply or what is told does: their holds are kept for one lease.
  void pass_on(const std::vector<HandlePointer>& references);

  // The owner keeps nothing of this worker any more.
  void lose(const std::string& owner);
  // Releases, and answers for which nobody waits; about ten times a second.
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
