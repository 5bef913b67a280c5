#include "paceline/transport/message.h"

#include <algorithm>
#include <cerrno>

namespace paceline {

Unsent unsent(const MessageHeader& header, std::span<const std::byte> payload, std::size_t sent) {
  const auto head = std::as_bytes(std::span(&header, 1));
  return {head.subspan(std::min(sent, head.size())),
          payload.subspan(sent > head.size() ? sent - head.size() : 0)};
}

bool would_block(int error) { return error == EAGAIN; }

}  // namespace paceline
