// Both halves of the handshake with a peer that does not know the secret: it must never be let in.

#include <algorithm>

#include "paceline/engine/core/authentication.h"

#include "tests/fuzz/fuzz.h"

namespace paceline::fuzz {
namespace {

const Secret& secret() {
  static const Secret kSecret = Secret::generate();
  return kSecret;
}

// Feeds the bytes in pieces of up to `most`.
void try_half(HandshakeSide& handshake, std::span<const std::byte> bytes, std::size_t most) {
  while (!bytes.empty() && !handshake.done()) {
    const std::size_t count = std::min({bytes.size(), most, handshake.wanted()});
    handshake.feed(bytes.first(count));
    bytes = bytes.subspan(count);
  }
  require(!handshake.done(), "nobody is trusted who does not know the secret");
}

}  // namespace

void take(std::span<const std::byte> bytes) {
  const auto choice = take_byte(bytes);
  if (choice == 0) {
    ClientHandshake client(secret(), "mesh world", "a stranger");
    try_half(client, bytes, bytes.size());
  } else {
    ServerHandshake server(secret(), "mesh world", "a stranger");
    try_half(server, bytes, choice);
  }
}

}  // namespace paceline::fuzz
