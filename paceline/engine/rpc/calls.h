#pragma once

// The parts of the templates in workers.h: future replies, requests as handlers read them, and
// answers that handlers give later.

#include <chrono>
#include <concepts>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "paceline/engine/core/deadline.h"
#include "paceline/engine/rpc/caller.h"
#include "paceline/engine/rpc/handlers.h"
#include "paceline/engine/rpc/protocol/message.h"
#include "paceline/engine/rpc/references.h"

namespace paceline::rpc {

// A message without fields.
struct Nothing {
  static auto fields(auto& /*self*/) { return std::tie(); }
};

struct CallOptions {
  std::optional<std::chrono::milliseconds> deadline{};  // default: JoinOptions::deadline
};

namespace detail {

inline constexpr std::chrono::milliseconds kDefaultDeadline = std::chrono::seconds(60);

// Reads a message that has arrived. The result may refer to memory of the payload.
template <Message T>
T read_payload(const Payload& payload, ReferenceTable* references, Deadline deadline) {
  MessageReader in(payload.bytes(), references);
  T message = read_message<T>(in);
  if (!in.references().empty()) references->confirm(in.references(), deadline);
  return message;
}

}  // namespace detail

// The future reply of a call. Destroying it gives up the call.
//
// Thread safety: one thread at a time may use it.
template <class Reply>
class Future {
 public:  // internal
  Future(std::shared_ptr<Caller> caller, PendingPointer call,
         std::shared_ptr<ReferenceTable> references)
      : caller_(std::move(caller)), call_(std::move(call)), references_(std::move(references)) {}

 public:
  Future(Future&& other) noexcept = default;
  Future& operator=(Future&& other) noexcept {
    abandon();
    caller_ = std::move(other.caller_);
    call_ = std::move(other.call_);
    references_ = std::move(other.references_);
    return *this;
  }
  ~Future() { abandon(); }

  bool is_ready() const {
    if (!call_->done()) caller_->pump();
    return call_->done();
  }
  // Waits for the end of the call, at most for `limit`. Returns whether it has ended, or its
  // deadline has passed: get() then returns at once.
  bool wait_for(std::chrono::milliseconds limit) {
    caller_->wait(call_, Deadline::after(limit));
    return call_->done() || call_->deadline().expired();
  }
  // Waits for the reply, at most until the call's deadline; throws CallError (call_error.h) if it
  // does not arrive. Call it once. Spans and views in the reply refer to memory of this Future.
  Reply get() {
    caller_->wait(call_, call_->deadline());
    if (!call_->done()) caller_->give_up(call_);
    caller_->wait(call_, Deadline::never());  // returns soon: given up, or the reply was first
    Payload& reply = call_->reply();
    try {
      return read(reply);
    } catch (const Error& error) {
      throw caller_->unreadable_reply(*call_, error.what());
    }
  }

 private:
  Reply read(Payload& reply) {
    OutgoingPointer& own = reply.in_memory();
    if (!own) return detail::read_payload<Reply>(reply, references_.get(), call_->deadline());
    if (const Reply* object = own->object<Reply>()) {
      // If only this Future owns the object, it can be moved; the callee may keep it for a while.
      if (own.use_count() == 1) return std::move(const_cast<Reply&>(*object));
      return *object;
    }
    rewritten_ = own->write().copy();
    return read_message<Reply>(rewritten_);
  }
  void abandon() {
    if (call_ && !call_->done()) caller_->give_up(call_);
  }
  std::shared_ptr<Caller> caller_;
  PendingPointer call_;
  std::shared_ptr<ReferenceTable> references_;
  std::vector<std::byte>
      rewritten_;  // the bytes of a reply from this worker itself, of another type
};

namespace detail {

// The request of a call at its handler: read from bytes, or the caller's own object.
template <Message T>
class RequestOf {
 public:
  explicit RequestOf(const Incoming& call) {
    try {
      if (const auto& own = call.payload().in_memory()) {
        object_ = own->template object<T>();
        if (object_ != nullptr) return;
        rewritten_ = own->write().copy();
        value_.emplace(read_message<T>(std::span<const std::byte>(rewritten_)));
      } else {
        const auto references = call.references();
        value_.emplace(read_payload<T>(call.payload(), references.get(), call.deadline()));
      }
      object_ = &*value_;
    } catch (const Error& error) {
      throw UnreadableRequest(error.what());
    }
  }
  RequestOf(const RequestOf&) = delete;
  RequestOf& operator=(const RequestOf&) = delete;
  const T& operator*() const { return *object_; }

 private:
  std::vector<std::byte> rewritten_;
  std::optional<T> value_;
  const T* object_ = nullptr;
};

}  // namespace detail

// A handler's duty to answer, which it may pass on to another thread or a queue. The handler's
// request lives as long as the Answer. Destroying it without an answer fails the call.
//
// Thread safety: one thread at a time may use it.
template <Message Reply>
class Answer {
 public:  // internal
  Answer(std::shared_ptr<Incoming> call, std::shared_ptr<const void> request)
      : call_(std::move(call)), request_(std::move(request)) {}

 public:
  Answer(Answer&&) noexcept = default;
  Answer& operator=(Answer&&) noexcept = default;
  ~Answer() {
    if (call_ && !call_->is_answered())
      call_->fail("its handler dropped the call without an answer");
  }

  const Context& context() const { return *call_; }
  void give(Reply reply) { call_->answer(make_outgoing(std::move(reply), call_->is_for_self())); }
  void fail(const std::string& why) { call_->fail(why); }

 private:
  std::shared_ptr<Incoming> call_;
  std::shared_ptr<const void> request_;
};

namespace detail {

// The effect that a method declares.
template <class M>
constexpr Effect effect_of() {
  if constexpr (requires { M::kEffect; }) {
    return M::kEffect;
  } else {
    return Effect::kAtMostOnce;
  }
}
template <class M>
CallTarget target_of() {
  static const std::uint64_t number = method_id(M::kName);
  return {.method = M::kName, .method_number = number, .effect = effect_of<M>()};
}

// Makes a handler of a function: `function(const Request&, Context&)` returns the reply,
// `function(const Request&, Answer)` answers at any time.
template <Message Request, Message Reply, class F>
Handler make_handler(F function) {
  return [function = std::move(function)](const std::shared_ptr<Incoming>& call) mutable {
    if constexpr (std::invocable<F&, const Request&, Answer<Reply>>) {
      auto request = std::make_shared<RequestOf<Request>>(*call);
      const Request& seen = **request;
      function(seen, Answer<Reply>(call, std::move(request)));
    } else {
      static_assert(std::is_invocable_r_v<Reply, F&, const Request&, Context&>,
                    "a handler is called as handler(const Request&, Context&) and returns the "
                    "reply, or as handler(const Request&, Answer<Reply>)");
      const RequestOf<Request> request(*call);
      Context& context = *call;
      call->answer(make_outgoing<Reply>(function(*request, context), call->is_for_self()));
    }
  };
}

// Begins a call, and keeps its references alive until the call has arrived.
template <Message Request>
PendingPointer begin_call(Caller& caller, ReferenceTable& references, const CallTarget& target,
                          Request request, Deadline deadline) {
  auto outgoing = make_outgoing(std::move(request), caller.is_self());
  std::function<void(CallEnd)> when_ended;
  if (!outgoing->writer().references().empty()) {
    references.await_creation(outgoing->writer().references(), deadline);
    when_ended = references.pass(outgoing->writer().references());
  }
  return caller.call(target, std::move(outgoing), deadline, std::move(when_ended));
}
// As begin_call(), for a one-way message. The sender never learns when the message arrives, so it
// keeps the holds of its references for one lease. Waits until the deadline for objects that are
// being created.
template <Message Request>
void tell_call(Caller& caller, ReferenceTable& references, const CallTarget& target,
               Request request, Deadline deadline) {
  auto outgoing = make_outgoing(std::move(request), caller.is_self());
  if (!outgoing->writer().references().empty()) {
    references.await_creation(outgoing->writer().references(), deadline);
    references.pass_on(outgoing->writer().references());
  }
  caller.tell(target, std::move(outgoing));
}

}  // namespace detail

}  // namespace paceline::rpc
