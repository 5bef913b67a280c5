// Both halves of the handshake, from a peer that does not know the secret: it must never be let in.

#include <algorithm>
#include <chrono>

#include <sys/socket.h>

#include "paceline/core/handshake.h"

#include "tests/fuzz/fuzz.h"

namespace paceline::fuzz {
namespace {

const Secret& secret() {
  static const Secret kSecret = Secret::generate();
  return kSecret;
}

void try_server(std::span<const std::byte> bytes, std::size_t most) {
  ServerHandshake handshake(secret(), "mesh world", "a stranger");
  while (!bytes.empty() && !handshake.done()) {
    const std::size_t count = std::min({bytes.size(), most, handshake.wanted()});
    handshake.feed(bytes.first(count));
    bytes = bytes.subspan(count);
  }
  require(!handshake.done(), "a server lets nobody in who does not know the secret");
}

void try_client(std::span<const std::byte> bytes) {
  int ends[2];
  require(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) == 0,
          "socketpair()");
  const Fd mine(ends[0]), theirs(ends[1]);
  (void)!::send(theirs.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  ::shutdown(theirs.get(), SHUT_WR);
  authenticate_as_client(mine, secret(), "mesh world", Deadline::after(std::chrono::seconds(1)));
  require(false, "a client trusts no server that does not know the secret");
}

}  // namespace

void take(std::span<const std::byte> bytes) {
  const auto choice = take_byte(bytes);
  if (choice == 0) {
    try_client(bytes);
  } else {
    try_server(bytes, choice);
  }
}

}  // namespace paceline::fuzz
