#include "paceline/launcher/process/reserved_port.h"

#include <cerrno>

#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "paceline/engine/core/error.h"
#include "paceline/engine/core/socket.h"

namespace paceline::launcher {
namespace {

// Sets SO_REUSEADDR after binding a port that the kernel picked: set before, the kernel could pick
// one that another launcher reserved in the same way.
void allow_reuse(const Fd& socket) {
  const int on = 1;
  setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
}

}  // namespace

ReservedPort reserve_port(std::uint16_t port) {
  Fd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!socket) throw system_error("socket()");
  if (port != 0) allow_reuse(socket);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_ANY);
  if (bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    const int error = errno;
    throw system_error(
        fmt::format("--master-port {0} cannot be used (who holds it: ss -ltnp 'sport = :{0}'; "
                    "without the flag a free port is taken)",
                    port),
        error);
  }
  allow_reuse(socket);
  const std::uint16_t got = local_port(socket);
  return {std::move(socket), got};
}

}  // namespace paceline::launcher
