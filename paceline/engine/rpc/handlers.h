#pragma once

// The callee's side of a call: a request as its handler sees it (Context, Incoming), how methods
// are served (Method), and the objects that methods belong to (Objects).

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

// What a handler may ask about the call that it answers.
//
// Thread safety: all methods.
class Context {
 public:
  Context(std::string caller, Deadline deadline)
      : caller_(std::move(caller)), deadline_(deadline) {}
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  // The name of the worker that called.
  const std::string& caller() const { return caller_; }
  // The moment by which the caller wants the reply; never, for a told message.
  Deadline deadline() const { return deadline_; }
  // True once the caller no longer waits for the reply: a long handler may stop.
  bool is_cancelled() const {
    return is_cancelled_.load(std::memory_order_relaxed) || deadline_.expired();
  }

  // Behind find_object() and keep_object() of remote_ref.h.
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

// The request is not of the type that the handler takes: it was not executed.
class UnreadableRequest : public Error {
 public:
  explicit UnreadableRequest(const std::string& why) : Error(ErrorCode::kCorrupt, why) {}
};

// How a method is served.
struct ServeOptions {
  int threads = 0;           // handlers of this method that run at a time; 0: any number
  std::size_t queue = 4096;  // calls that wait for them; more are refused, not executed
};

// Reads the request, and answers now or later. What it throws becomes the caller's CallError.
using Handler = std::function<void(const std::shared_ptr<Incoming>& call)>;

struct Method {
  enum class Kind : std::uint8_t {
    kPlain,
    kAtOnce,  // by the thread that receives, in the order of arrival
    kCreate,  // makes the object that the call names
    kObject,  // of that object
  };
  std::string name;
  Handler handler;
  Kind kind = Kind::kPlain;
  ServeOptions options{};
  std::uint64_t class_number = 0;  // of kCreate and kObject
};

// A queue of calls of which a limited number runs at a time, in order. Its owner's mutex guards it.
struct Lane {
  int num_running = 0;
  std::unique_ptr<std::deque<std::shared_ptr<Incoming>>> waiting{};
};

// A request that has arrived: what its handler reads, runs in and answers.
//
// Thread safety: answer() and cancel(); everything else belongs to the thread that runs it.
class Incoming final : public Context,
                       public Pool::Task,
                       public std::enable_shared_from_this<Incoming> {
 public:
  Incoming(std::shared_ptr<Server> server, std::shared_ptr<CalleeRecord> session,
           std::string caller, const Frame& frame, Payload payload, Deadline deadline);
  ~Incoming() override;

  const Payload& payload() const { return payload_; }
  // Once; later answers are dropped.
  void answer(OutgoingPointer reply) { answer(ReplyStatus::kOk, std::move(reply)); }
  void answer(ReplyStatus status, OutgoingPointer reply);
  void fail(const std::string& why);
  bool is_answered() const { return is_answered_; }
  // Whether the reply goes to this worker itself.
  bool is_for_self() const { return payload_.in_memory() != nullptr; }
  std::shared_ptr<ReferenceTable> references() const;

  // The object of a kObject method; of a kCreate method once its handler has made it.
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
  std::shared_ptr<Guest> teller_;  // the connection that told it; null for a call
  std::shared_ptr<const Method> method_;
  CallMark mark_;
  std::atomic<bool> is_answered_{false};
};

// The objects of this worker to which others have references: who holds each (ObjectHolds), and the
// calls at it, which run one at a time in the order in which they arrived, the constructor first.
// An object whose last hold has ended is destroyed once the calls that came before have run.
//
// Thread safety: all methods. None runs code of the objects: objects that die are handed out.
class Objects {
 public:
  using Dead = std::vector<std::shared_ptr<void>>;

  // A new object of a class, whose constructor runs later. False if there is one of this number.
  bool create(ObjectNumber number, std::uint64_t class_number, SessionNumber holder);
  // As create(), for an object that exists already. The object stays untouched if this returns
  // false.
  bool keep(ObjectNumber number, std::uint64_t class_number, SessionNumber holder,
            std::shared_ptr<void>&& object);

  enum class Admission : std::uint8_t { kRun, kWaits, kNoObject, kOtherClass, kTooMany };
  // A call at an object: kRun if it is to be run now; otherwise finished() of another says when.
  Admission admit(ObjectNumber number, std::uint64_t class_number,
                  const std::shared_ptr<Incoming>& call, std::size_t max_waiting);
  // The object, once its constructor has ended; null if that failed, with the reason.
  std::shared_ptr<void> find(ObjectNumber number, std::string& why_not) const;
  // The object, if it exists and is of this class.
  std::shared_ptr<void> find_of(std::uint64_t class_number, ObjectNumber number) const;
  // The constructor has ended.
  void constructed(ObjectNumber number, std::shared_ptr<void> object);
  void failed(ObjectNumber number, const std::string& why);
  // A call has ended. Returns the next one.
  std::shared_ptr<Incoming> finished(ObjectNumber number, Dead& dead);

  bool hold(ObjectNumber number, SessionNumber holder);
  void release(ObjectNumber number, SessionNumber holder, Dead& dead);
  void end_session(SessionNumber holder, Dead& dead);
  // The calls that wait for others at their objects. They do not run any more.
  std::vector<std::shared_ptr<Incoming>> take_waiting();
  // Counts objects whose constructors have not ended, too.
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

  mutable std::mutex mutex_;  // guards what follows
  ObjectHolds holds_;
  std::unordered_map<ObjectNumber, Object> objects_;
};

}  // namespace paceline::rpc
