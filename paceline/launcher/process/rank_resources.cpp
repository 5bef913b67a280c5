#include "paceline/launcher/process/rank_resources.h"

#include <array>
#include <cerrno>
#include <climits>

#include <fmt/format.h>
#include <linux/mempolicy.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "paceline/engine/core/check.h"
#include "paceline/engine/core/error.h"
#include "paceline/engine/core/error_text.h"
#include "paceline/engine/core/system/socket.h"

namespace paceline::launcher {

namespace {

constexpr rlim_t kPerRank = 6;   // two pipes, a log and a pidfd; the socket and pidfd of a seed
constexpr rlim_t kForAll = 128;  // for the launcher itself, and for other connections to the store

rlimit original_limit{};
bool raised = false;

}  // namespace

void require_descriptors(int num_local_ranks) {
  // Each rank needs one more descriptor, for its connection to the store.
  const rlim_t needed = (kPerRank + 1) * static_cast<rlim_t>(num_local_ranks) + kForAll;
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  if (limit.rlim_cur >= needed) return;
  if (limit.rlim_max < needed) {
    fail(ErrorCode::kSystem,
         "{} ranks need {} open files, but the hard limit is {}; raise it (ulimit -Hn {}) or start "
         "fewer ranks",
         num_local_ranks, needed, limit.rlim_max, needed);
  }
  original_limit = limit;
  limit.rlim_cur = needed;
  raised = setrlimit(RLIMIT_NOFILE, &limit) == 0;
}

void restore_descriptor_limit() {
  if (raised) setrlimit(RLIMIT_NOFILE, &original_limit);
}

namespace {

constexpr int kBitsPerWord = sizeof(unsigned long) * CHAR_BIT;
constexpr int kMaxNodes = 1024;  // the kernel's own limit

using NodeMask = std::array<unsigned long, kMaxNodes / kBitsPerWord>;

bool set_policy(int mode, const NodeMask& mask) {
  return syscall(SYS_set_mempolicy, mode, mask.data(), kMaxNodes + 1) == 0;
}

}  // namespace

bool prefer_memory_of(const std::vector<int>& numa_nodes) {
  if (numa_nodes.empty()) return true;
  NodeMask mask{};
  for (const int node : numa_nodes) {
    if (node >= 0 && node < kMaxNodes) mask[node / kBitsPerWord] |= 1UL << node % kBitsPerWord;
  }
  if (set_policy(MPOL_PREFERRED_MANY, mask)) return true;
  // Before Linux 5.15 only a single node can be preferred.
  return errno == EINVAL && numa_nodes.size() == 1 && set_policy(MPOL_PREFERRED, mask);
}

namespace {

// Sets SO_REUSEADDR. If the kernel is to pick the port, call this after bind(): otherwise the
// kernel could pick a port that another launcher has reserved in the same way.
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
        fmt::format("--master-port {0} cannot be used (to see which process uses it: ss -ltnp "
                    "'sport = :{0}'; without the flag a free port is chosen)",
                    port),
        error);
  }
  allow_reuse(socket);
  const std::uint16_t got = local_port(socket);
  return {std::move(socket), got};
}

}  // namespace paceline::launcher
