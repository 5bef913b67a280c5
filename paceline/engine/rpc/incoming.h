#pragma once

// A request that has arrived: what its handler reads, runs in and answers.
//
// Thread safety: answer() and cancel(); everything else belongs to the thread that runs it.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>

#include "paceline/engine/rpc/call_stats.h"
#include "paceline/engine/rpc/context.h"
#include "paceline/engine/rpc/frame.h"
#include "paceline/engine/rpc/outgoing.h"
#include "paceline/engine/rpc/pool.h"

namespace paceline::rpc {

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

// So many calls at a time, in their order. Guarded by whoever has it.
struct Lane {
  int num_running = 0;
  std::unique_ptr<std::deque<std::shared_ptr<Incoming>>> waiting{};
};

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

  // Of a method of kObject, or, when the handler of kCreate has made it.
  std::shared_ptr<void> object;
  std::uint64_t object_number() const { return frame_.object; }

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

}  // namespace paceline::rpc
