// Bytes that a broken worker may send: frames and parts on a connection, the fields of a message,
// its entry in the store.

#include <array>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include <sys/socket.h>

#include "paceline/engine/core/system/fd.h"
#include "paceline/engine/rpc/directory.h"
#include "paceline/engine/rpc/protocol/connection.h"
#include "paceline/engine/rpc/protocol/shm_channel.h"

#include "tests/fuzz/fuzz.h"

namespace paceline::fuzz {
namespace {

struct Inner {
  std::array<std::int16_t, 3> three{};
  std::optional<std::string> text;
  std::vector<Inner> more;
  static auto fields(auto& m) { return std::tie(m.three, m.text, m.more); }
};
struct Outer {
  bool flag = false;
  double number = 0;
  std::vector<float> floats;
  std::vector<std::string> names;
  std::vector<std::vector<std::uint8_t>> nested;
  Inner inner;
  std::span<const std::int64_t> view;
  static auto fields(auto& m) {
    return std::tie(m.flag, m.number, m.floats, m.names, m.nested, m.inner, m.view);
  }
};

struct Count final : rpc::Connection::Receiver {
  std::size_t bytes = 0;
  void take(const rpc::Frame& /*frame*/, rpc::Payload payload) override {
    bytes += payload.bytes().size();
  }
};

void receive_frames(std::span<const std::byte> bytes) {
  constexpr std::size_t kLimit = 1 << 20;
  std::array<int, 2> ends{};
  require(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends.data()) == 0,
          "a pair of sockets");
  const Fd sender(ends[0]);
  rpc::Connection connection(Fd(ends[1]), nullptr, kLimit, false);
  (void)!::send(sender.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  ::shutdown(sender.get(), SHUT_WR);
  Count count;
  while (connection.receive(count)) {
  }
  require(count.bytes <= bytes.size(), "no more arrives than was sent");
}

// The same bytes through rings of shared memory, of which the sender holds the other end.
void receive_through_rings(std::span<const std::byte> bytes) {
  constexpr std::size_t kLimit = 1 << 20;
  std::array<int, 2> ends{};
  require(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends.data()) == 0,
          "a pair of sockets");
  const Fd sender(ends[0]);
  rpc::Connection connection(Fd(ends[1]), nullptr, kLimit, false);
  const auto rings = rpc::Rings::make();
  require(rings != nullptr, "memory to share");
  const auto frame = rpc::encode({.kind = rpc::FrameKind::kRings});
  const int descriptor = rings->descriptor();
  require(send_with_descriptors(sender.get(), frame, std::span(&descriptor, 1)) > 0, "rings sent");
  const iovec piece{const_cast<std::byte*>(bytes.data()), bytes.size()};
  if (!bytes.empty()) rings->write(std::span(&piece, 1));
  ::shutdown(sender.get(), SHUT_WR);
  Count count;
  while (connection.receive(count)) {
  }
  require(count.bytes <= bytes.size(), "no more arrives than was sent");
}

// Corrects the magic and the counter of each frame, so that the rest is reached.
void receive_mended_frames(std::span<const std::byte> bytes, std::size_t first_counter) {
  std::vector<std::byte> mended(bytes.begin(), bytes.end());
  const auto right = rpc::encode({});
  for (std::size_t at = 0, counter = first_counter; at + rpc::kFrameBytes <= mended.size();
       ++counter) {
    std::memcpy(mended.data() + at, right.data(), 4);
    const auto number = static_cast<std::uint32_t>(counter);
    std::memcpy(mended.data() + at + 8, &number, sizeof number);
    std::uint32_t length = 0;
    std::memcpy(&length, mended.data() + at + 12, sizeof length);
    at += rpc::kFrameBytes + length % 256;
  }
  return first_counter == 0 ? receive_frames(mended) : receive_through_rings(mended);
}

void read_fields(std::span<const std::byte> bytes) {
  std::vector<std::uint64_t> aligned(bytes.size() / 8 + 1);
  if (!bytes.empty()) std::memcpy(aligned.data(), bytes.data(), bytes.size());
  const auto there = std::as_bytes(std::span(aligned)).first(bytes.size());
  const auto message = rpc::read_message<Outer>(there);
  const auto again = rpc::write_message(message).copy();
  std::vector<std::uint64_t> words(again.size() / 8 + 1);
  std::memcpy(words.data(), again.data(), again.size());
  const auto read = rpc::read_message<Outer>(std::as_bytes(std::span(words)).first(again.size()));
  require(read.names == message.names && read.nested == message.nested,
          "a message that was read is written alike");
}

void read_entry(std::span<const std::byte> bytes) {
  std::vector<std::uint64_t> aligned(bytes.size() / 8 + 1);
  if (!bytes.empty()) std::memcpy(aligned.data(), bytes.data(), bytes.size());
  (void)rpc::read_message<rpc::WorkerEntry>(std::as_bytes(std::span(aligned)).first(bytes.size()));
}

}  // namespace

void take(std::span<const std::byte> bytes) {
  switch (take_byte(bytes) % 5) {
    case 0:
      return receive_frames(bytes);
    case 1:
      return receive_mended_frames(bytes, 0);
    case 2:
      return read_entry(bytes);
    case 3:
      return read_fields(bytes);
    default:  // after the frame that sends the rings
      return receive_mended_frames(bytes, 1);
  }
}

}  // namespace paceline::fuzz
