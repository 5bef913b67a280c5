#pragma once

// The types that the templates in workers.h use: future replies, requests as handlers read them,
// and answers that handlers give later.

#include <chrono>
#include <concepts>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "paceline/engine/core/error.h"
#include "paceline/engine/rpc/call_target.h"
#include "paceline/engine/rpc/protocol/message.h"
#include "paceline/engine/rpc/protocol/outgoing.h"
#include "paceline/engine/rpc/served_call.h"

namespace paceline::rpc {

// A message without fields.
struct Nothing {
  static auto fields(auto& /*self*/) { return std::tie(); }
};

struct CallOptions {
  std::optional<std::chrono::milliseconds> deadline{};  // default: JoinOptions::deadline
};

class Caller;
class PendingCall;

namespace detail {

inline constexpr std::chrono::milliseconds kDefaultDeadline = std::chrono::seconds(60);

// The part of a Future that does not depend on the type of the reply. Destroying it gives up the
// call.
//
// Thread safety: one thread at a time may use it.
class FutureReply {
 public:
  FutureReply(std::shared_ptr<Caller> caller, std::shared_ptr<PendingCall> call,
              std::shared_ptr<ReferenceTable> references);
  FutureReply(FutureReply&& other) noexcept = default;
  FutureReply& operator=(FutureReply&& other) noexcept;
  ~FutureReply();

  bool is_ready() const;
  bool wait_for(std::chrono::milliseconds limit) const;
  // Waits for the reply, which lives as long as this object.
  ReceivedMessage get() const;
  // Throws the CallError for a reply that does not have the type that the program expects.
  [[noreturn]] void refuse(const Error& error) const;

 private:
  void abandon();

  std::shared_ptr<Caller> caller_;
  std::shared_ptr<PendingCall> call_;
  std::shared_ptr<ReferenceTable> references_;
};

// Waits for the owners of the message's references to grant or refuse holds, until the deadline.
void confirm_references(const MessageReader& read, const ReceivedMessage& message);

// Reads a message that has arrived. The result may refer to memory of the message.
template <Message T>
T read_received(const ReceivedMessage& message) {
  MessageReader in(message.bytes, message.references);
  T value = read_message<T>(in);
  if (!in.references().empty()) confirm_references(in, message);
  return value;
}

}  // namespace detail

// The future reply of a call. Destroying it gives up the call.
//
// Thread safety: one thread at a time may use it.
template <class Reply>
class Future {
 public:  // internal
  Future(detail::FutureReply&& reply) : reply_(std::move(reply)) {}

 public:
  bool is_ready() const { return reply_.is_ready(); }
  // Waits for the end of the call, at most for `limit`. Returns true if the call has ended or its
  // deadline has passed; get() then does not wait for the reply.
  bool wait_for(std::chrono::milliseconds limit) { return reply_.wait_for(limit); }
  // Waits for the reply, at most until the call's deadline. Throws CallError (call_error.h) if the
  // call fails. Call get() once. Spans and views in the reply refer to memory of this Future.
  Reply get() {
    const detail::ReceivedMessage received = reply_.get();
    try {
      return read(received);
    } catch (const Error& error) {
      reply_.refuse(error);
    }
  }

 private:
  Reply read(const detail::ReceivedMessage& received) {
    if (received.own == nullptr) return detail::read_received<Reply>(received);
    detail::OutgoingPointer& own = *received.own;
    if (const Reply* object = own->template object<Reply>()) {
      // The object can be moved only if the callee, which may keep it for a while, has dropped it.
      if (own.use_count() == 1) return std::move(const_cast<Reply&>(*object));
      return *object;
    }
    rewritten_ = own->write().copy();
    return detail::read_message<Reply>(std::span<const std::byte>(rewritten_));
  }

  detail::FutureReply reply_;
  // The bytes of a reply that this worker sent to itself as an object of another type.
  std::vector<std::byte> rewritten_;
};

namespace detail {

// A request as its handler sees it: read from bytes, or the object of a worker that calls itself.
template <Message T>
class RequestOf {
 public:
  explicit RequestOf(ServedCall& call) {
    try {
      const ReceivedMessage received = call.request();
      if (received.own != nullptr) {
        const OutgoingPointer& own = *received.own;
        object_ = own->template object<T>();
        if (object_ != nullptr) return;
        rewritten_ = own->write().copy();
        value_.emplace(read_message<T>(std::span<const std::byte>(rewritten_)));
      } else {
        value_.emplace(read_received<T>(received));
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

// A handler's obligation to answer, which can be passed on to another thread or a queue. The
// handler's request lives as long as the Answer. Destroying an unused Answer fails the call.
//
// Thread safety: one thread at a time may use it.
template <Message Reply>
class Answer {
 public:  // internal
  Answer(std::shared_ptr<detail::ServedCall> call, std::shared_ptr<const void> request)
      : call_(std::move(call)), request_(std::move(request)) {}

 public:
  Answer(Answer&&) noexcept = default;
  Answer& operator=(Answer&&) noexcept = default;
  ~Answer() {
    if (call_ && !call_->is_answered())
      call_->fail("its handler dropped the call without an answer");
  }

  const Context& context() const { return *call_; }
  void give(Reply reply) {
    call_->answer(detail::make_outgoing(std::move(reply), call_->is_for_self()));
  }
  void fail(const std::string& why) { call_->fail(why); }

 private:
  std::shared_ptr<detail::ServedCall> call_;
  std::shared_ptr<const void> request_;
};

namespace detail {

// The effect that a method declares; kAtMostOnce if it declares none.
template <class M>
constexpr Effect effect_of() {
  if constexpr (requires { M::kEffect; }) {
    return M::kEffect;
  } else {
    return Effect::kAtMostOnce;
  }
}
template <class M>
const CallTarget& target_of() {
  static const CallTarget target{
      .method = M::kName, .method_number = method_id(M::kName), .effect = effect_of<M>()};
  return target;
}

// Makes a handler from a function: `function(const Request&, Context&)` returns the reply,
// `function(const Request&, Answer)` answers at any time.
template <Message Request, Message Reply, class F>
Handler make_handler(F function) {
  return [function = std::move(function)](ServedCall& call) mutable {
    if constexpr (std::invocable<F&, const Request&, Answer<Reply>>) {
      auto request = std::make_shared<RequestOf<Request>>(call);
      const Request& seen = **request;
      function(seen, Answer<Reply>(call.shared_from_this(), std::move(request)));
    } else {
      static_assert(std::is_invocable_r_v<Reply, F&, const Request&, Context&>,
                    "a handler is called as handler(const Request&, Context&) and returns the "
                    "reply, or as handler(const Request&, Answer<Reply>)");
      const RequestOf<Request> request(call);
      Context& context = call;
      call.answer(make_outgoing<Reply>(function(*request, context), call.is_for_self()));
    }
  };
}

}  // namespace detail

}  // namespace paceline::rpc
