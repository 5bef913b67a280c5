#include "paceline/engine/rpc/protocol/frame.h"

#include <cstring>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>

#include <xxhash.h>

#include "paceline/engine/core/check.h"

namespace paceline::rpc {

namespace {

constexpr std::uint32_t kMagic = 0x43504c01;  // the lowest byte is the version
constexpr std::uint8_t kAllFlags =
    Frame::kInParts | Frame::kUrgent | Frame::kInMemory | Frame::kInArea;

// The header in memory, which has the same layout on the wire.
struct Header {
  std::uint32_t magic = kMagic;
  std::uint8_t kind = 0, effect = 0, status = 0, flags = 0;
  std::uint32_t counter = 0, length = 0, time_left_ms = 0, max_calls = 0;
  std::uint64_t session = 0, number = 0, acknowledged = 0, method = 0, object = 0;
};
static_assert(sizeof(Header) == kFrameBytes);

bool is_kind(std::uint8_t kind) {
  const auto within = [&](FrameKind first, FrameKind last) {
    return kind >= static_cast<std::uint8_t>(first) && kind <= static_cast<std::uint8_t>(last);
  };
  return within(FrameKind::kOpen, FrameKind::kGoodbye) ||
         within(FrameKind::kOpened, FrameKind::kCredit) ||
         within(FrameKind::kPart, FrameKind::kRings);
}

[[noreturn]] void refuse(const std::string& why) {
  fail(ErrorCode::kCorrupt, "a worker sent an invalid frame: {}", why);
}

}  // namespace

std::array<std::byte, kFrameBytes> encode(const Frame& frame) {
  const Header header{.kind = static_cast<std::uint8_t>(frame.kind),
                      .effect = static_cast<std::uint8_t>(frame.effect),
                      .status = static_cast<std::uint8_t>(frame.status),
                      .flags = frame.flags,
                      .counter = frame.counter,
                      .length = frame.length,
                      .time_left_ms = frame.time_left_ms,
                      .max_calls = frame.max_calls,
                      .session = frame.session,
                      .number = frame.number,
                      .acknowledged = frame.acknowledged,
                      .method = frame.method,
                      .object = frame.object};
  std::array<std::byte, kFrameBytes> bytes;
  std::memcpy(bytes.data(), &header, sizeof header);
  return bytes;
}

Frame decode_frame(std::span<const std::byte, kFrameBytes> bytes) {
  Header header;
  std::memcpy(&header, bytes.data(), sizeof header);
  if (header.magic != kMagic) refuse(fmt::format("it begins with {:#010x}", header.magic));
  if (!is_kind(header.kind)) refuse(fmt::format("kind {} is unknown", header.kind));
  if (header.effect > static_cast<std::uint8_t>(Effect::kOnce)) {
    refuse(fmt::format("effect {} is unknown", header.effect));
  }
  if (header.status > static_cast<std::uint8_t>(ReplyStatus::kLeaving)) {
    refuse(fmt::format("status {} is unknown", header.status));
  }
  if ((header.flags & ~kAllFlags) != 0) refuse(fmt::format("flags {:#x}", header.flags));
  return {.kind = static_cast<FrameKind>(header.kind),
          .effect = static_cast<Effect>(header.effect),
          .status = static_cast<ReplyStatus>(header.status),
          .flags = header.flags,
          .counter = header.counter,
          .length = header.length,
          .time_left_ms = header.time_left_ms,
          .max_calls = header.max_calls,
          .session = header.session,
          .number = header.number,
          .acknowledged = header.acknowledged,
          .method = header.method,
          .object = header.object};
}

std::uint64_t detail::method_id(std::string_view name) {
  return XXH3_128bits(name.data(), name.size()).low64;
}

namespace {

struct Kept {
  std::mutex mutex;  // guards the members below
  std::unordered_map<std::uint64_t, OutgoingPointer> messages;
  std::uint64_t last_ticket = 0;
};

// Never destroyed, because a worker in a global variable may use it until the process ends.
Kept& kept() {
  static auto& kept = *new Kept;
  return kept;
}

}  // namespace

std::uint64_t LocalMessages::keep(OutgoingPointer message) {
  Kept& all = kept();
  const std::lock_guard lock(all.mutex);
  all.messages.emplace(++all.last_ticket, std::move(message));
  return all.last_ticket;
}

OutgoingPointer LocalMessages::take(std::uint64_t ticket) {
  Kept& all = kept();
  const std::lock_guard lock(all.mutex);
  auto node = all.messages.extract(ticket);
  if (node.empty()) fail(ErrorCode::kCorrupt, "a worker sent an unknown ticket");
  return std::move(node.mapped());
}

void LocalMessages::discard(std::uint64_t ticket) {
  OutgoingPointer message;  // destroyed after the lock is released
  Kept& all = kept();
  const std::lock_guard lock(all.mutex);
  auto node = all.messages.extract(ticket);
  if (!node.empty()) message = std::move(node.mapped());
}

}  // namespace paceline::rpc
