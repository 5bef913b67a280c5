#pragma once

// The callee's side of a call: Context, which its handler sees, and ServedCall, with which the
// templates of calls.h read the request and answer it. Method describes how a method is served.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "paceline/engine/core/deadline.h"
#include "paceline/engine/core/error.h"
#include "paceline/engine/rpc/call_target.h"
#include "paceline/engine/rpc/protocol/outgoing.h"

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
  // True once the caller no longer waits or this worker is leaving: a long handler may stop.
  bool is_cancelled() const {
    return is_cancelled_.load(std::memory_order_relaxed) || deadline_.expired();
  }

 public:  // internal
  // find_object() and keep_object() of remote_ref.h call these functions.
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

// How a method is served. A call that finds its queue full is refused.
struct ServeOptions {
  int threads = 0;           // handlers that may run at once; 0: any number; ignored for objects
  std::size_t queue = 4096;  // calls that may wait for an object, or for limited `threads`
};

namespace detail {

// The request does not have the type that the handler takes, so the call was not executed.
class UnreadableRequest : public Error {
 public:
  explicit UnreadableRequest(const std::string& why) : Error(ErrorCode::kCorrupt, why) {}
};

// A message that has arrived and has not been converted to its type yet.
struct ReceivedMessage {
  std::span<const std::byte> bytes;       // empty for a message from this worker itself
  OutgoingPointer* own = nullptr;         // a message from this worker itself; null for others
  ReferenceTable* references = nullptr;   // receives the references in the message
  Deadline deadline = Deadline::never();  // for the answers of the references' owners
};

// The call that a handler answers. A handler that answers later shares the ownership.
//
// Thread safety: any thread may call answer(), fail(), is_answered() and the methods of Context;
// everything else belongs to the thread that runs the handler.
class ServedCall : public Context, public std::enable_shared_from_this<ServedCall> {
 public:
  using Context::Context;

  // The request; it lives as long as the call.
  virtual ReceivedMessage request() = 0;
  // Sends the answer; any later answer is dropped.
  virtual void answer(OutgoingPointer reply) = 0;
  virtual void fail(const std::string& why) = 0;
  virtual bool is_answered() const = 0;
  // Whether the reply goes to this worker itself.
  virtual bool is_for_self() const = 0;

  // kObject: the object that the method belongs to. kCreate: the object that the handler has made.
  std::shared_ptr<void> object;

 protected:
  ~ServedCall() = default;
};

// Reads the request, and answers now or later. Its exceptions become the caller's CallError.
using Handler = std::function<void(ServedCall& call)>;

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

}  // namespace detail

}  // namespace paceline::rpc
