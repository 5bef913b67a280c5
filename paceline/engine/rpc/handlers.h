#pragma once

// The callee's side of a call: the request at its handler (Context, Incoming), the way methods are
// served (Method), and the objects that methods belong to (Objects).

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
#include "paceline/engine/rpc/setup.h"

namespace paceline::rpc {

// The call that a handler answers, as the handler sees it.
//
// Thread safety: every method may be called from any thread.
class Context {
 public:  // internal
  Context(std::string caller, Deadline deadline)
      : caller_(std::move(caller)), deadline_(deadline) {}

 public:
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  // The name of the calling worker.
  const std::string& caller() const { return caller_; }
  // The moment by which the caller wants the reply; never() for a one-way message.
  Deadline deadline() const { return deadline_; }
  // True once the caller no longer waits for the reply: a long handler may stop.
  bool is_cancelled() const {
    return is_cancelled_.load(std::memory_order_relaxed) || deadline_.expired();
  }

 public:  // internal
  // find_object() and keep_object() of remote_ref.h call these.
  virtual std::shared_ptr<void> find_own(std::uint64_t class_number, ObjectNumber number) const = 0;
  virtual void keep_own(std::uint64_t class_number, ObjectNumber number,
                        std::shared_ptr<void> object) = 0;

 protected:
  ~Context() = default;
  std::atomic<bool> is_cancelled_{false};

 private:
  const std::string caller_;
  const Deadline deadline_;
};

class Guest;
class Incoming;
class ReferenceTable;
class Server;
struct CalleeRecord;

// The request does not have the type that the handler takes, so it was not executed.
class UnreadableRequest : public Error {
 public:
  explicit UnreadableRequest(const std::string& why) : Error(ErrorCode::kCorrupt, why) {}
};

// How a method is served.
struct ServeOptions {
  int threads = 0;           // handlers of this method that may run at a time; 0: any number
  std::size_t queue = 4096;  // calls that may wait for a handler; further calls are refused
};

// Reads the request, and answers now or later. Its exceptions become the caller's CallError.
using Handler = std::function<void(const std::shared_ptr<Incoming>& call)>;

struct Method {
  enum class Kind : std::uint8_t {
    kPlain,
    kAtOnce,  // the receiving thread runs it, in the order of arrival
    kCreate,  // makes the object that the call names
    kObject,  // belongs to the object that the call names
  };
  std::string name;
  Handler handler;
  Kind kind = Kind::kPlain;
  ServeOptions options{};
  std::uint64_t class_number = 0;  // for kCreate and kObject
};

// A queue of calls that run in order, a limited number at a time. The owner's mutex guards it.
struct Lane {
  int num_running = 0;
  std::unique_ptr<std::deque<std::shared_ptr<Incoming>>> waiting{};
};

// A request that has arrived. As a task of the pool it runs its handler, which reads and answers
// it.
//
// Thread safety: any thread may call answer() and cancel(); everything else belongs to the thread
// that runs it.
class Incoming final : public Context,
                       public Pool::Task,
                       public std::enable_shared_from_this<Incoming> {
 public:
  Incoming(std::shared_ptr<Server> server, std::shared_ptr<CalleeRecord> session,
           std::string caller, const Frame& frame, Payload payload, Deadline deadline);
  ~Incoming() override;

  const Payload& payload() const { return payload_; }
  // Sends the answer; any later answer is dropped.
  void answer(OutgoingPointer reply) { answer(ReplyStatus::kOk, std::move(reply)); }
  void answer(ReplyStatus status, OutgoingPointer reply);
  void fail(const std::string& why);
  bool is_answered() const { return is_answered_; }
  // Whether the reply goes to this worker itself.
  bool is_for_self() const { return payload_.in_memory() != nullptr; }
  std::shared_ptr<ReferenceTable> references() const;

  // The object of a kObject method, or, once its handler has made it, of a kCreate method.
  std::shared_ptr<void> object;

  std::shared_ptr<void> find_own(std::uint64_t class_number, ObjectNumber number) const override;
  void keep_own(std::uint64_t class_number, ObjectNumber number,
                std::shared_ptr<void> object) override;

  void run() override;
  void cancel() { is_cancelled_ = true; }

 private:
  friend class Server;
  const std::shared_ptr<Server> server_;
  const std::shared_ptr<CalleeRecord> session_;
  const Frame frame_;
  Payload payload_;
  std::shared_ptr<Guest> teller_;  // the connection of a one-way message; null for a call
  std::shared_ptr<const Method> method_;
  CallMark mark_;
  std::atomic<bool> is_answered_{false};
};

// The objects of this worker to which other workers hold references. Each object has its holders
// (ObjectHolds) and a queue of calls, which run one at a time, in order of arrival, after the
// constructor. An object is destroyed after its last hold has ended and the calls that arrived
// before have run.
//
// Thread safety: every method may be called from any thread. None of them runs code of the objects;
// the caller destroys the objects that it gets back.
class Objects {
 public:
  using Dead = std::vector<std::shared_ptr<void>>;

  // Adds an object of a class, whose constructor runs later. Returns false if the number is taken.
  bool create(ObjectNumber number, std::uint64_t class_number, SessionNumber holder);
  // As create(), for an object that already exists. If this returns false, the object is untouched.
  bool keep(ObjectNumber number, std::uint64_t class_number, SessionNumber holder,
            std::shared_ptr<void>&& object);

  enum class Admission : std::uint8_t { kRun, kWaits, kNoObject, kOtherClass, kTooMany };
  // Admits a call to an object. kRun: the caller must run it now. kWaits: a later finished()
  // returns it.
  Admission admit(ObjectNumber number, std::uint64_t class_number,
                  const std::shared_ptr<Incoming>& call, std::size_t max_waiting);
  // The object; null, with the reason, if its constructor failed or it no longer exists. Requires:
  // its constructor has ended.
  std::shared_ptr<void> find(ObjectNumber number, std::string& why_not) const;
  // The object, if it exists and belongs to this class.
  std::shared_ptr<void> find_of(std::uint64_t class_number, ObjectNumber number) const;
  // Call one of these when the constructor has ended, with an object or an error.
  void constructed(ObjectNumber number, std::shared_ptr<void> object);
  void failed(ObjectNumber number, const std::string& why);
  // Call this when a call to the object has ended. Returns the next call, if any.
  std::shared_ptr<Incoming> finished(ObjectNumber number, Dead& dead);

  // Adds a hold; returns false if the object has been destroyed. release() ends one hold, and
  // end_session() all holds of a session; both append to `dead` the objects that they destroy.
  bool hold(ObjectNumber number, SessionNumber holder);
  void release(ObjectNumber number, SessionNumber holder, Dead& dead);
  void end_session(SessionNumber holder, Dead& dead);
  // Takes out all calls that wait at their objects; they will not run any more.
  std::vector<std::shared_ptr<Incoming>> take_waiting();
  // Destroys all objects.
  void forget_all();
  std::size_t num_objects() const;

 private:
  struct Object {
    std::uint64_t class_number = 0;
    std::shared_ptr<void> instance{};
    std::unique_ptr<std::string> failure{};
    Lane lane{};
    bool is_released = false;
  };
  void bury_locked(const ObjectHolds::Destroyed& numbers, Dead& dead);

  mutable std::mutex mutex_;  // guards the members below
  ObjectHolds holds_;
  std::unordered_map<ObjectNumber, Object> objects_;
};

}  // namespace paceline::rpc
