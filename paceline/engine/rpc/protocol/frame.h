#pragma once

// Frames between two workers: each is a header, possibly followed by a message. Also the types of
// received messages (Payload) and of messages of a worker to itself (LocalMessages).
// rpc/FORMAT.md has the layout.
//
// The calling worker makes the connection for its calls, so every connection has a caller's end and
// a callee's end. session.h defines the meaning of each frame.
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

#include "paceline/engine/rpc/call_target.h"
#include "paceline/engine/rpc/protocol/message.h"
#include "paceline/engine/rpc/protocol/outgoing.h"
#include "paceline/engine/rpc/protocol/session.h"

namespace paceline::rpc {

// Names that the installed headers define in namespace detail.
using detail::CallTarget;
using detail::FieldKind;
using detail::make_outgoing;
using detail::MessageReader;
using detail::MessageWriter;
using detail::method_id;
using detail::Outgoing;
using detail::OutgoingPointer;
using detail::read_message;
using detail::write_message;

enum class FrameKind : std::uint8_t {
  // from the caller
  kOpen = 1,     // asks for a session: `number` counts the caller's connections
  kResume,       // resumes `session`; the message lists the calls that were sent
  kRequest,      // call `number`: a message for a method
  kTell,         // a one-way message for a method, without a reply
  kAcknowledge,  // the callee may forget the calls whose numbers follow
  kRenew,        // a sign of life
  kGoodbye,      // the session ends, because the caller leaves
  // from the callee
  kOpened = 65,  // `session`, and the credit: how much may be under way
  kResumed,      // the state of each call, and the credit
  kRefused,      // `session` is unknown
  kReply,        // the reply to call `number`: a message if `status` is kOk, else an error
  kRenewed,
  // How many one-way messages of this connection have been handled so far (`number`), and how many
  // bytes they had (`method`).
  kCredit,
  // from either end
  kPart = 129,  // a part of the message that was announced last
  kArea,        // comes with a descriptor: the sender's area (shm_channel.h)
  kRings,       // comes with a descriptor: later bytes go through these rings (shm_channel.h)
};

// How the callee answers a request.
enum class ReplyStatus : std::uint8_t {
  kOk,
  kHandlerFailed,  // the handler threw or dropped the answer; a text follows
  // not executed; a text follows
  kNoMethod,
  kUnreadable,  // the request does not have the type that the handler takes
  kTooLate,     // its deadline passed before a handler was free
  kBusy,        // too many requests wait
  kNoObject,    // the object of the reference does not exist (any more)
  kLeaving,     // the worker is leaving
};

struct Frame {
  // `flags`
  static constexpr std::uint8_t kInParts = 1;   // the message follows in kPart frames
  static constexpr std::uint8_t kUrgent = 2;    // on the urgent lane
  static constexpr std::uint8_t kInMemory = 4;  // the message is a ticket (LocalMessages)
  static constexpr std::uint8_t kInArea = 8;    // the message is an AreaPlace (shm_channel.h)

  FrameKind kind{};
  Effect effect{};
  ReplyStatus status{};
  std::uint8_t flags = 0;
  std::uint32_t counter = 0;       // counts the frames of a direction and lane from 0
  std::uint32_t length = 0;        // bytes of the message
  std::uint32_t time_left_ms = 0;  // until the deadline; in kOpened and kResumed: the lease
  std::uint32_t max_calls = 0;     // in kOpened and kResumed
  SessionNumber session = 0;
  CallNumber number = 0;
  CallNumber acknowledged = 0;  // in kRequest: a call that the callee may forget; 0: none
  std::uint64_t method = 0;     // method_id(); in kOpened, kResumed and kCredit: bytes
  std::uint64_t object = 0;     // the object of the method; 0: none
  bool operator==(const Frame&) const = default;
};

inline constexpr std::size_t kFrameBytes = 64;
// A longer message travels in parts of this size; urgent frames are sent between the parts.
inline constexpr std::size_t kPartBytes = 256 << 10;

std::array<std::byte, kFrameBytes> encode(const Frame& frame);
// Throws Error(kCorrupt) for bytes that no worker sends.
Frame decode_frame(std::span<const std::byte, kFrameBytes> bytes);

// Outgoing bytes other than messages: the lists in the session's frames, texts of errors.
class OutgoingBytes final : public Outgoing {
 public:
  OutgoingBytes() : Outgoing(nullptr, nullptr, false) {}
  explicit OutgoingBytes(std::string_view text) : OutgoingBytes() {
    writer_.put_bytes(std::as_bytes(std::span(text.data(), text.size())));
  }
  MessageWriter& to() { return writer_; }
  MessageWriter write() const override { return {}; }
};

// A message that has arrived. Its bytes begin at a multiple of MessageWriter::kAlignment.
class Payload {
 public:
  Payload() = default;
  explicit Payload(std::size_t size) : size_(size) {
    if (size > sizeof small_) large_ = std::make_unique_for_overwrite<Word[]>(size / 8 + 1);
  }
  explicit Payload(OutgoingPointer in_memory) : in_memory_(std::move(in_memory)) {}
  // A payload in memory of the other end (shm_channel.h). The other end learns when the payload has
  // been destroyed.
  Payload(std::shared_ptr<const std::byte> in_area, std::size_t size)
      : size_(size), in_area_(std::move(in_area)) {}

  // Requires: the payload owns its memory.
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
  // The object of a message from this worker itself, which has no bytes; otherwise null.
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

// Messages of a worker to itself. The objects wait here while their tickets are on the way.
//
// Thread safety: every function may be called from any thread.
class LocalMessages {
 public:
  // Returns a ticket for the message, which take() redeems once.
  static std::uint64_t keep(OutgoingPointer message);
  // Throws Error(kCorrupt) for a ticket that was never issued, or was redeemed or discarded.
  static OutgoingPointer take(std::uint64_t ticket);
  // Drops the message of a ticket that may have been lost.
  static void discard(std::uint64_t ticket);
};

}  // namespace paceline::rpc
