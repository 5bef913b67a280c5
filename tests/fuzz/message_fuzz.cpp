// Bytes that a broken member may send: messages on a data socket, a notice or anything else on the
// control socket, an address in the store.

#include <array>
#include <chrono>

#include "paceline/engine/transport/control_messages.h"
#include "paceline/engine/transport/exchange.h"

#include "tests/fuzz/fuzz.h"
#include "tests/harness/raw_mesh.h"

namespace paceline::fuzz {
namespace {

void feed(const harness::RawMesh& raw, Channel channel, std::span<const std::byte> bytes) {
  const int socket = raw.end(channel).get();
  (void)!::send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  ::shutdown(socket, SHUT_WR);
}

void receive(std::span<const std::byte> bytes, std::size_t expected) {
  auto raw = harness::make_raw_mesh();
  feed(raw, Channel::kData, bytes);
  feed(raw, Channel::kControl, {});
  Exchange exchange(*raw.mesh);
  std::array<std::byte, 256> into{};
  exchange.post_receive(1, std::span(into).first(expected));
  exchange.post_receive(1, {});
  std::size_t headers = 0;
  const auto check = [&](int, const MessageHeader& header, bool) {
    require(header.magic == MessageHeader::kMagic, "only messages are shown");
    ++headers;
  };
  // The loop ends by itself: the other end has sent everything and closed its connection.
  exchange.run_until([&] { return exchange.idle(); }, check,
                     Deadline::after(std::chrono::seconds(1)), [] {});
  require(exchange.idle() && headers >= 2, "two messages came, or an error");
}

void listen_to_control(std::span<const std::byte> bytes) {
  auto raw = harness::make_raw_mesh();
  feed(raw, Channel::kControl, bytes);
  raw.mesh->throw_if_failed();
}

void read_address(std::span<const std::byte> bytes) {
  const auto address = PeerAddress::decode(std::string(text_of(bytes)));
  require(address.encode() == text_of(bytes), "an address that was read is written alike");
}

}  // namespace

void take(std::span<const std::byte> bytes) {
  const auto choice = take_byte(bytes);
  switch (choice % 4) {
    case 0:
      return listen_to_control(bytes);
    case 1:
      return read_address(bytes);
    default:
      return receive(bytes, choice / 4);
  }
}

}  // namespace paceline::fuzz
