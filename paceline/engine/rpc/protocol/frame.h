#pragma once

// What travels between two workers: frames, each a header and perhaps a message; messages on their
// way out (Outgoing) and in (Payload), and those of a worker to itself (LocalMessages).
// docs/formats/calls.md has the layout.
//
// A worker calls another over a connection of its own, so every connection has a caller's end and a
// callee's end, and session.h says what each frame means.
//
// Thread safety: pure functions.

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "paceline/engine/rpc/protocol/message.h"
#include "paceline/engine/rpc/protocol/session.h"

namespace paceline::rpc {

enum class FrameKind : std::uint8_t {
  // from the caller
  kOpen = 1,     // asks for a session: `number` counts the caller's connections
  kResume,       // goes on with `session`: the numbers of the calls that were sent
  kRequest,      // call `number`: a message for a method
  kTell,         // a message for a method; nothing answers it
  kAcknowledge,  // the calls whose numbers follow may be forgotten
  kRenew,        // a sign of life
  kGoodbye,      // the session ends: the caller leaves
  // from the callee
  kOpened = 65,  // `session`, and how much may be under way at a time
  kResumed,      // what is known of each call, and how much may be under way
  kRefused,      // `session` is not known
  kReply,        // to call `number`: a message, or what went wrong, as `status`
  kRenewed,
  kCredit,  // so many of what this connection told (`number`, in bytes `method`) have been handled
  // from either
  kPart = 129,  // of the message that was announced last
  kArea,        // comes with a descriptor: the sender's area (shm_channel.h)
  kRings,       // comes with a descriptor: what follows goes through it (shm_channel.h)
};

// How the callee answers a request.
enum class ReplyStatus : std::uint8_t {
  kOk,
  kHandlerFailed,  // it threw, or let go of the answer: the text follows
  // not executed; a text follows
  kNoMethod,
  kUnreadable,  // the request is not of the type that the handler takes
  kTooLate,     // its time was over before a handler was free
  kBusy,        // too many requests wait
  kNoObject,    // what the reference refers to does not exist (any more)
  kLeaving,     // the worker leaves
};

struct Frame {
  // `flags`
  static constexpr std::uint8_t kInParts = 1;   // the message follows in frames of kPart
  static constexpr std::uint8_t kUrgent = 2;    // on the lane of its own
  static constexpr std::uint8_t kInMemory = 4;  // the message is a ticket (LocalMessages)
  static constexpr std::uint8_t kInArea = 8;    // the message says where it lies (shm_channel.h)

  FrameKind kind{};
  Effect effect{};
  ReplyStatus status{};
  std::uint8_t flags = 0;
  std::uint32_t counter = 0;  // of the frames of one direction and lane of a connection, from 0
  std::uint32_t length = 0;   // of the message
  std::uint32_t time_left_ms = 0;  // of kOpened and kResumed: the lease
  std::uint32_t max_calls = 0;     // of kOpened and kResumed
  SessionNumber session = 0;
  CallNumber number = 0;
  CallNumber acknowledged = 0;  // by the way, with a request; 0: none
  std::uint64_t method = 0;     // method_id(); of kOpened and kResumed how many bytes
  std::uint64_t object = 0;     // that the method belongs to; 0: none
  bool operator==(const Frame&) const = default;
};

inline constexpr std::size_t kFrameBytes = 64;
// A longer message travels in parts of this size, between which frames of the urgent lane find
// room.
inline constexpr std::size_t kPartBytes = 256 << 10;

std::array<std::byte, kFrameBytes> encode(const Frame& frame);
// Error(kCorrupt) for what no worker sends.
Frame decode_frame(std::span<const std::byte, kFrameBytes> bytes);

// A method's name as it travels: the lower half of XXH3-128.
std::uint64_t method_id(std::string_view name);

// Its address stands for the type within this process.
template <class T>
inline constexpr char kTypeTag = 0;

// A message on its way out, with the object that it was made of, to whose memory it may refer.
//
// A message to this worker itself keeps its object: only a ticket for it goes through the socket,
// and the handler sees the caller's object.
//
// Thread safety: const methods are safe.
class Outgoing {
 public:
  virtual ~Outgoing() = default;
  Outgoing(const Outgoing&) = delete;
  Outgoing& operator=(const Outgoing&) = delete;

  // The bytes. Empty if it goes to this worker itself.
  const MessageWriter& writer() const { return writer_; }
  bool is_for_self() const { return is_for_self_; }
  // The object, if it is a T.
  template <class T>
  const T* object() const {
    return type_ == &kTypeTag<T> ? static_cast<const T*>(object_) : nullptr;
  }
  // The bytes of one that is_for_self(), for a reader that takes another type.
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
  OutgoingOf(T&& message, bool is_for_self)
      : Outgoing(&kTypeTag<T>, &message_, is_for_self), message_(std::move(message)) {
    if (is_for_self) return;
    writer_.reserve(kUsualBytes);
    write_field(writer_, message_);
  }
  MessageWriter write() const override { return write_message(message_); }

 private:
  static constexpr std::size_t kUsualBytes = 192;
  T message_;
};
template <Message T>
OutgoingPointer make_outgoing(T message, bool is_for_self = false) {
  return std::make_shared<const OutgoingOf<T>>(std::move(message), is_for_self);
}

// Bytes that are no message: lists of the session's frames, texts of errors.
class OutgoingBytes final : public Outgoing {
 public:
  OutgoingBytes() : Outgoing(nullptr, nullptr, false) {}
  explicit OutgoingBytes(std::string_view text) : OutgoingBytes() {
    writer_.put_bytes(std::as_bytes(std::span(text.data(), text.size())));
  }
  MessageWriter& to() { return writer_; }
  MessageWriter write() const override { return {}; }
};

// A message that has arrived. Its bytes lie at a multiple of MessageWriter::kAlignment.
class Payload {
 public:
  Payload() = default;
  explicit Payload(std::size_t size) : size_(size) {
    if (size > sizeof small_) large_ = std::make_unique_for_overwrite<Word[]>(size / 8 + 1);
  }
  explicit Payload(OutgoingPointer in_memory) : in_memory_(std::move(in_memory)) {}
  // Bytes of the other end (shm_channel.h), whose owner learns when they are read.
  Payload(std::shared_ptr<const std::byte> in_area, std::size_t size)
      : size_(size), in_area_(std::move(in_area)) {}

  // Requires: they are memory of its own.
  std::span<std::byte> bytes() {
    return {reinterpret_cast<std::byte*>(large_ ? large_.get() : small_.data()), size_};
  }
  std::span<const std::byte> bytes() const {
    if (in_area_) return {in_area_.get(), size_};
    return {reinterpret_cast<const std::byte*>(large_ ? large_.get() : small_.data()), size_};
  }
  std::string text() const {
    const auto all = bytes();
    return {reinterpret_cast<const char*>(all.data()), all.size()};
  }
  // From this worker itself: not bytes, but the object. Null otherwise.
  const OutgoingPointer& in_memory() const { return in_memory_; }
  OutgoingPointer& in_memory() { return in_memory_; }

 private:
  using Word = std::uint64_t;
  std::size_t size_ = 0;
  std::unique_ptr<Word[]> large_;
  OutgoingPointer in_memory_;
  std::shared_ptr<const std::byte> in_area_;
  std::array<Word, 16> small_{};
};

// Messages of a worker to itself: the objects wait here while their tickets are on the way.
//
// Thread safety: all functions.
class LocalMessages {
 public:
  // A ticket for the message, which take() redeems once.
  static std::uint64_t keep(OutgoingPointer message);
  // Error(kCorrupt) for a ticket that this process has not given out.
  static OutgoingPointer take(std::uint64_t ticket);
  // Of a ticket that may have been lost.
  static void discard(std::uint64_t ticket);
};

}  // namespace paceline::rpc
