#include "paceline/transport/message.h"

#include <algorithm>
#include <cerrno>

#include <sys/socket.h>
#include <sys/uio.h>

namespace paceline {

ssize_t send_rest(int socket, const MessageHeader& header, std::span<const std::byte> payload,
                  std::size_t sent) {
  iovec parts[2];
  msghdr request{};
  request.msg_iov = parts;
  const auto add = [&](std::span<const std::byte> bytes) {
    if (!bytes.empty())
      parts[request.msg_iovlen++] = {const_cast<std::byte*>(bytes.data()), bytes.size()};
  };
  const auto head = std::as_bytes(std::span(&header, 1));
  add(head.subspan(std::min(sent, head.size())));
  add(payload.subspan(sent > head.size() ? sent - head.size() : 0));
  return ::sendmsg(socket, &request, MSG_NOSIGNAL | MSG_DONTWAIT);
}

bool would_block(int error) { return error == EAGAIN || error == EWOULDBLOCK || error == EINTR; }

}  // namespace paceline
