#pragma once

// What travels between two workers: frames, each a header and perhaps a message.
// docs/formats/calls.md has the layout.
//
// A worker calls another over a connection of its own, so every connection has a caller's end and a
// callee's end, and session.h says what each frame means.
//
// Thread safety: pure functions.

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "paceline/engine/rpc/session.h"

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
  kArea,        // comes with a descriptor: the sender's area (area.h)
  kRings,       // comes with a descriptor: what follows goes through it (rings.h)
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
  static constexpr std::uint8_t kInMemory = 4;  // the message is a ticket (local_messages.h)
  static constexpr std::uint8_t kInArea = 8;    // the message says where it lies (area.h)

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

}  // namespace paceline::rpc
