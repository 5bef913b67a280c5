#include "paceline/engine/collectives/backends/paceline/message_head.h"

#include <algorithm>
#include <bit>

#include <fmt/format.h>

#include "paceline/engine/core/rank_name.h"
#include "paceline/engine/transport/mesh.h"

namespace paceline {

Fingerprint fingerprint_of(const PointToPointCall& call) {
  Fingerprint fingerprint;
  fingerprint.op = Op::kSend;
  fingerprint.dtype = call.dtype;
  fingerprint.count = call.count;
  fingerprint.shape = call.shape;
  return fingerprint;
}

MessageHead MessageHead::of(const PointToPointCall& call) {
  MessageHead head;
  head.header.tag = call.tag;
  head.header.payload_bytes = bytes_of(call);
  Fingerprint fingerprint = fingerprint_of(call);
  if (call.sizes) {
    fingerprint.layout = static_cast<std::uint32_t>(call.sizes->size() + 1);
    std::copy(call.sizes->begin(), call.sizes->end(), head.sizes.begin());
  }
  head.header.fingerprint = std::bit_cast<FingerprintWords>(fingerprint);
  return head;
}

bool MessageHead::fits_payload() const {
  std::size_t bytes = size_of(std::bit_cast<Fingerprint>(header.fingerprint).dtype);
  for (const std::int64_t size : shape()) {
    if (size < 0 || __builtin_mul_overflow(bytes, static_cast<std::size_t>(size), &bytes)) {
      return false;
    }
  }
  return bytes == header.payload_bytes;
}

std::string MessageLabel::operator()() const {
  return fmt::format(
      "{} of {} {} {}, tag {}", what,
      any_shape ? "a tensor with its shape" : fmt::format("{} x {}", name_of(dtype), count),
      what == name_of(Op::kSend) ? "to" : "from",
      peer == kAnySource ? "any rank" : rank_name(peer, peer_in_world), tag);
}

MessageLabel label_of(const char* what, const PointToPointCall& call, const Mesh& mesh) {
  const int in_world = call.peer == kAnySource ? kAnySource : mesh.in_world(call.peer);
  return {what, call.dtype, call.count, call.place != nullptr, call.peer, in_world, call.tag};
}

}  // namespace paceline
