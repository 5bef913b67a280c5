#pragma once

// Outgoing messages: bytes, together with the object from which they were made.
//
// Thread safety: none for one object, except that const methods are safe.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "paceline/engine/rpc/protocol/message.h"

namespace paceline::rpc::detail {

// The address of this variable identifies the type T within the process.
template <class T>
inline constexpr char kTypeTag = 0;

// Whether a message refers to the memory of large spans, which must then live until its call has
// ended, or has a copy of them.
enum class LargeSpans : std::uint8_t { kCopied, kInPlace };

// An outgoing message, together with the object from which it was made; the message may refer to
// the object's memory.
//
// A message to this worker itself is not encoded, unless its object has spans or views: only a
// ticket for the object goes through the socket, and the handler sees the caller's object.
//
// Thread safety: const methods are safe.
class Outgoing {
 public:
  virtual ~Outgoing() = default;
  Outgoing(const Outgoing&) = delete;
  Outgoing& operator=(const Outgoing&) = delete;

  // The bytes of the message; empty if is_for_self().
  const MessageWriter& writer() const { return writer_; }
  // Whether only a ticket for the object is sent.
  bool is_for_self() const { return is_for_self_; }
  // The object, if it is a T; otherwise null.
  template <class T>
  const T* object() const {
    return type_ == &kTypeTag<T> ? static_cast<const T*>(object_) : nullptr;
  }
  // Encodes a message that is_for_self(), for a receiver that expects another type.
  virtual MessageWriter write() const = 0;

 protected:
  Outgoing(const char* type, const void* object, bool is_for_self)
      : type_(type), object_(object), is_for_self_(is_for_self) {}
  MessageWriter writer_;

 private:
  const char* type_;
  const void* object_;
  bool is_for_self_;
};
using OutgoingPointer = std::shared_ptr<const Outgoing>;

template <Message T>
class OutgoingOf final : public Outgoing {
 public:
  OutgoingOf(T&& message, bool is_for_self, LargeSpans spans)
      : Outgoing(&kTypeTag<T>, &message_, is_for_self && !has_views<T>()),
        message_(std::move(message)) {
    if (this->is_for_self()) return;
    writer_.reserve(kUsualBytes);
    write_field(writer_, message_);
    if (has_views<T>() && spans == LargeSpans::kCopied) writer_.own_parts();
  }
  MessageWriter write() const override { return write_message(message_); }

 private:
  static constexpr std::size_t kUsualBytes = 192;
  T message_;
};
template <Message T>
OutgoingPointer make_outgoing(T message, bool is_for_self = false,
                              LargeSpans spans = LargeSpans::kCopied) {
  return std::make_shared<const OutgoingOf<T>>(std::move(message), is_for_self, spans);
}

// Makes the outgoing message of a request once it is known whether the request goes to this worker
// itself. Refers to the request until then, and moves from it.
class RequestMaker {
 public:
  template <Message T>
  explicit RequestMaker(T& request, LargeSpans spans = LargeSpans::kCopied)
      : request_(&request),
        spans_(spans),
        make_([](void* from, bool is_for_self, LargeSpans spans_there) {
          return make_outgoing(std::move(*static_cast<T*>(from)), is_for_self, spans_there);
        }) {}
  OutgoingPointer operator()(bool is_for_self) const {
    return make_(request_, is_for_self, spans_);
  }

 private:
  void* request_;
  LargeSpans spans_;
  OutgoingPointer (*make_)(void* from, bool is_for_self, LargeSpans spans);
};

}  // namespace paceline::rpc::detail
