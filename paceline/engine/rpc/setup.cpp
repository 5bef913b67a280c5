#include "paceline/engine/rpc/setup.h"

#include <algorithm>
#include <ctime>

#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include "paceline/engine/core/system/socket.h"

namespace paceline::rpc {

std::size_t longest_frame(const Setup& setup) {
  constexpr std::size_t kMinBytes = 64 << 10, kBytesOfACall = 16;
  return std::max({setup.max_message, kMinBytes, kBytesOfACall * setup.max_calls});
}

LeaseTime boot_time() {
  timespec time{};
  clock_gettime(CLOCK_BOOTTIME, &time);
  return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
}

std::string connection_context(const WorkerEntry& callee, bool is_encrypted) {
  return fmt::format("calls at {} {}{}", callee.name, callee.incarnation,
                     is_encrypted ? " encrypted" : "");
}

bool is_encrypted(const WorkerEntry& callee, const WorkerEntry& caller) {
  return callee.encrypts && !callee.shares_host_with(caller);
}

void prepare_tcp(const Fd& socket) {
  constexpr int kUnsent = 128 << 10;
  constexpr int kOn = 1;
  ::setsockopt(socket.get(), IPPROTO_TCP, TCP_NOTSENT_LOWAT, &kUnsent, sizeof kUnsent);
  ::setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &kOn, sizeof kOn);
  end_on_silence(socket, kSilence);
}

}  // namespace paceline::rpc
