#pragma once

// What travels ahead of a point-to-point payload: the header, and the shape of a tensor where the
// receiver may not know it (docs/wire_formats.md, section 4). Values.

#include <array>
#include <bit>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "paceline/engine/collectives/backend.h"
#include "paceline/engine/transport/message.h"

namespace paceline {

class Mesh;

// What both ends of a message must agree on.
Fingerprint fingerprint_of(const PointToPointCall& call);
inline std::size_t bytes_of(const PointToPointCall& call) {
  return call.count * size_of(call.dtype);
}

struct MessageHead {
  MessageHeader header;
  std::array<std::int64_t, kMaxMessageSizes> sizes{};  // num_sizes() of them travel

  static MessageHead of(const PointToPointCall& call);

  // All of them require the header.
  // Nothing: it has no shape. A fingerprint's layout, which messages do not need otherwise, has 1
  // more than there are sizes.
  std::optional<std::size_t> num_sizes() const {
    const std::uint32_t layout = std::bit_cast<Fingerprint>(header.fingerprint).layout;
    return layout == 0 ? std::optional<std::size_t>() : layout - 1;
  }
  std::span<const std::int64_t> shape() const { return {sizes.data(), num_sizes().value_or(0)}; }
  std::size_t num_bytes() const {
    return sizeof(MessageHeader) + num_sizes().value_or(0) * sizeof(std::int64_t);
  }
  // With the address that an offered payload has instead.
  std::size_t num_bytes_before_payload() const {
    return num_bytes() + (header.is_offer() ? sizeof(std::uint64_t) : 0);
  }
  std::span<const std::byte> bytes() const {
    return std::as_bytes(std::span(this, 1)).first(num_bytes());
  }
  // The payload has as many bytes as a tensor of this shape.
  bool fits_payload() const;
};

// A call for messages, without what it keeps alive.
struct MessageLabel {
  const char* what;
  Dtype dtype;
  std::size_t count;
  bool any_shape;
  int peer, peer_in_world;
  std::uint32_t tag;

  std::string operator()() const;
};

// `mesh`: that of the group, which knows the peer's number in the world.
MessageLabel label_of(const char* what, const PointToPointCall& call, const Mesh& mesh);

}  // namespace paceline
