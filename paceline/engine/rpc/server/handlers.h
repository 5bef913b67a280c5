#pragma once

// The callee's side of a call: the request at its handler (Incoming), and the objects that methods
// belong to (Objects).

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "paceline/engine/core/deadline.h"
#include "paceline/engine/rpc/pool.h"
#include "paceline/engine/rpc/protocol/frame.h"
#include "paceline/engine/rpc/protocol/session.h"
#include "paceline/engine/rpc/references.h"
#include "paceline/engine/rpc/served_call.h"
#include "paceline/engine/rpc/setup.h"

namespace paceline::rpc {

using detail::Method;
using detail::UnreadableRequest;

class Guest;
class Incoming;
class ReferenceTable;
class Server;
struct CalleeRecord;

// A queue of calls that run in order, a few at a time. Guarded by the mutex of Objects or Server.
struct CallQueue {
  int num_running = 0;
  std::unique_ptr<std::deque<std::shared_ptr<Incoming>>> waiting{};
};

// A request that has arrived, as a task of the pool: the task runs the handler, which reads the
// request and answers it.
//
// Thread safety: as ServedCall; any thread may also call cancel().
class Incoming final : public detail::ServedCall, public Pool::Task {
 public:
  Incoming(std::shared_ptr<Server> server, std::shared_ptr<CalleeRecord> session,
           std::string caller, const Frame& frame, Payload payload, Deadline deadline);
  ~Incoming() override;

  detail::ReceivedMessage request() override;
  void answer(OutgoingPointer reply) override { answer(ReplyStatus::kOk, std::move(reply)); }
  void answer(ReplyStatus status, OutgoingPointer reply);
  void fail(const std::string& why) override;
  bool is_answered() const override { return is_answered_; }
  bool is_for_self() const override { return payload_.in_memory() != nullptr; }
  std::shared_ptr<ReferenceTable> references() const;

  std::shared_ptr<void> find_own(std::uint64_t class_number, ObjectNumber number) const override;
  void keep_own(std::uint64_t class_number, ObjectNumber number,
                std::shared_ptr<void> kept) override;

  void run() override;
  void cancel() { is_cancelled_ = true; }

 private:
  friend class Server;
  const std::shared_ptr<Server> server_;
  const std::shared_ptr<CalleeRecord> session_;
  const Frame frame_;
  Payload payload_;
  std::shared_ptr<ReferenceTable> references_;  // receives the references in the request
  std::shared_ptr<Guest> teller_;  // the connection of a one-way message; null for a call
  std::shared_ptr<const Method> method_;
  CallMark mark_;
  std::atomic<bool> is_answered_{false};
};

// The objects of this worker to which other workers hold references. Each object has its holders
// (ObjectHolds) and a queue of calls, which run one at a time, in order of arrival, after the
// constructor. An object is destroyed after its last hold has ended and the calls that arrived
// before that have run.
//
// Thread safety: every method may be called from any thread. Only forget_all() runs destructors of
// objects; the other methods return objects to the calling function, which destroys them.
class Objects {
 public:
  using Dead = std::vector<std::shared_ptr<void>>;

  // Adds an object of a class, whose constructor runs later. Returns false if the number is taken.
  bool create(ObjectNumber number, std::uint64_t class_number, SessionNumber holder);
  // Like create(), for an object that already exists. If this returns false, the object is
  // untouched.
  bool keep(ObjectNumber number, std::uint64_t class_number, SessionNumber holder,
            std::shared_ptr<void>&& object);

  enum class Admission : std::uint8_t { kRun, kWaits, kNoObject, kOtherClass, kTooMany };
  // Admits a call to an object. kRun: the calling thread must run the call now. kWaits: a later
  // finished() returns the call.
  Admission admit(ObjectNumber number, std::uint64_t class_number,
                  const std::shared_ptr<Incoming>& call, std::size_t max_waiting);
  // Returns the object, or null with the reason in `why_not` if its constructor failed or the
  // object no longer exists. Requires: its constructor has ended.
  std::shared_ptr<void> find(ObjectNumber number, std::string& why_not) const;
  // The object, if it exists and belongs to this class.
  std::shared_ptr<void> find_of(std::uint64_t class_number, ObjectNumber number) const;
  // Call one of these when the constructor has ended, with an object or an error.
  void constructed(ObjectNumber number, std::shared_ptr<void> object);
  void failed(ObjectNumber number, const std::string& why);
  // Call this when a call to the object has ended. Returns the next call, if any.
  std::shared_ptr<Incoming> finished(ObjectNumber number, Dead& dead);

  // Adds a hold; returns false if the object has been destroyed. release() ends one hold, and
  // end_session() ends all holds of a session. Both move objects without holds to `dead`, for the
  // caller to destroy; an object that still has calls is moved by finished(), after the last call.
  bool hold(ObjectNumber number, SessionNumber holder);
  void release(ObjectNumber number, SessionNumber holder, Dead& dead);
  void end_session(SessionNumber holder, Dead& dead);
  // Removes and returns all waiting calls, which then never run.
  std::vector<std::shared_ptr<Incoming>> take_waiting();
  // Destroys all objects, after it has released the lock.
  void forget_all();
  std::size_t num_objects() const;

 private:
  struct Object {
    std::uint64_t class_number = 0;
    std::shared_ptr<void> instance{};
    std::unique_ptr<std::string> failure{};
    CallQueue queue{};
    bool is_released = false;
  };
  void bury_locked(const ObjectHolds::Destroyed& numbers, Dead& dead);

  mutable std::mutex mutex_;  // guards the members below
  ObjectHolds holds_;
  std::unordered_map<ObjectNumber, Object> objects_;
};

}  // namespace paceline::rpc
