#include "paceline/engine/transport/memory_exchange.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <system_error>
#include <vector>

#include <poll.h>
#include <sys/socket.h>

#include "paceline/engine/core/check.h"
#include "paceline/engine/core/descriptor_passing.h"
#include "paceline/engine/core/io.h"
#include "paceline/engine/core/vigil.h"
#include "paceline/engine/transport/advice.h"
#include "paceline/engine/transport/message.h"

namespace paceline {
namespace {

using namespace std::chrono_literals;

struct Offer {
  static constexpr std::uint64_t kMagic = 0x4f4c5001;  // "\x01PLO": version 1

  std::uint64_t magic = kMagic;
  std::uint64_t bytes = 0;
  std::uint64_t value = 0;
};
static_assert(sizeof(Offer) == 24);

bool is_end(int error) { return error == EPIPE || error == ECONNRESET; }

// How many bytes of the offer went with the descriptor; 0 and `error` when the kernel refuses to
// pass it (it may count too many that are on their way).
std::size_t send_descriptor(int socket, const Offer& offer, int fd, Deadline deadline, int& error) {
  const auto bytes = std::as_bytes(std::span(&offer, 1));
  ssize_t sent = 0;
  do {
    sent = send_with_descriptors(socket, bytes, std::span(&fd, 1));
  } while (sent < 0 && errno == EAGAIN && await(socket, POLLOUT, deadline));
  if (sent < 0 && !is_end(errno)) error = errno;
  return static_cast<std::size_t>(std::max<ssize_t>(sent, 0));
}

// Whole in any case, because the peer waits for it. Why the descriptor could not go with it, or 0.
int send_offer(Mesh& mesh, int peer, Offer offer, int fd, Deadline deadline) {
  int error = 0;
  std::size_t sent = 0;
  if (fd >= 0) {
    const int socket = mesh.wire().socket(peer, Channel::kData);
    sent = send_descriptor(socket, offer, fd, deadline, error);
    if (error != 0) offer.value = 0;
  }
  const auto rest = std::as_bytes(std::span(&offer, 1)).subspan(sent);
  if (!send_whole(mesh.wire(), peer, Channel::kData, rest, deadline)) {
    mesh.throw_lost(peer, is_end(errno) ? "is gone: it closed the connection"
                                        : std::string("is gone: ") + std::strerror(errno));
  }
  return error;
}

struct Incoming {
  Offer offer;
  std::size_t got = 0;  // of its bytes
  Fd fd;                // that came with it, if one did
};

// True when all of it has arrived.
bool receive_offer(Mesh& mesh, int peer, Incoming& incoming) {
  const int socket = mesh.wire().socket(peer, Channel::kData);
  const auto rest = std::as_writable_bytes(std::span(&incoming.offer, 1)).subspan(incoming.got);
  const ssize_t got = socket >= 0
                          ? receive_with_descriptors(socket, rest, std::span(&incoming.fd, 1)).bytes
                          : mesh.receive(peer, Channel::kData, rest);
  if (got < 0 && would_block(errno)) return false;
  if (got <= 0) {
    mesh.throw_lost(peer, got == 0 || is_end(errno)
                              ? "is gone: it closed the connection"
                              : std::string("is gone: ") + std::strerror(errno));
  }
  incoming.got += static_cast<std::size_t>(got);
  constexpr std::uint64_t kMagic = Offer::kMagic;
  if (std::memcmp(&incoming.offer, &kMagic, std::min(incoming.got, sizeof kMagic)) != 0) {
    fail(ErrorCode::kCorrupt, "{}: {} sent bytes that are not an offer of shared memory",
         mesh.self(), mesh.describe(peer));
  }
  return incoming.got == sizeof(Offer);
}

Incoming wait_for_offer(Mesh& mesh, int peer, Deadline deadline, std::size_t bytes) {
  const auto begin = Deadline::Clock::now();
  Incoming incoming;
  for (Vigil vigil; !receive_offer(mesh, peer, incoming);) {
    Interest interest{peer, Channel::kData, POLLIN};
    mesh.wire().wait({&interest, 1}, 10ms);
    mesh.throw_if_failed();
    if (const Awaited awaited{peer}; mesh.is_asked()) mesh.answer({&awaited, 1});
    if (vigil.sees_passed(deadline)) {
      fail(ErrorCode::kTimeout,
           "{}: allocating {} shared bytes in group {} timed out after {:.1f} s: {} has not "
           "allocated its block; {}",
           mesh.self(), bytes, mesh.name(),
           std::chrono::duration<double>(Deadline::Clock::now() - begin).count(),
           mesh.describe(peer), kAdviceForLate);
    }
  }
  return incoming;
}

// Only a rank itself knows its limit.
std::string cause_and_remedy(int cause, bool is_own) {
  if (cause == EMFILE && is_own) return describe_errno(cause);
  return fmt::format("{}; {}", std::generic_category().message(cause),
                     cause == EMFILE ? "raise the limit there: ulimit -n"
                                     : "free memory or choose --transport tcp");
}

}  // namespace

int exchange_with_peers(Mesh& mesh, std::size_t bytes, Deadline deadline,
                        const std::function<MemoryHandle(int peer)>& make,
                        const std::function<void(int peer, MemoryHandle handle)>& take) {
  int error = 0;
  for (const int peer : mesh.neighbours()) {
    if (peer == mesh.rank()) continue;
    const auto handle = make(peer);
    const Offer offer{.bytes = bytes, .value = handle.value};
    const int refused = send_offer(mesh, peer, offer, handle.fd, deadline);
    if (error == 0) error = refused;
  }
  for (const int peer : mesh.neighbours()) {
    if (peer == mesh.rank()) continue;
    Incoming incoming = wait_for_offer(mesh, peer, deadline, bytes);
    check(incoming.offer.bytes == bytes, "{}: asked for {} shared bytes, but {} asked for {}",
          mesh.self(), bytes, mesh.describe(peer), incoming.offer.bytes);
    take(peer, {incoming.offer.value, incoming.fd.release()});
  }
  return error;
}

void require_all_mapped(Mesh& mesh, std::size_t bytes, Deadline deadline, int error) {
  std::vector<int> errors(static_cast<std::size_t>(mesh.world_size()));
  errors[static_cast<std::size_t>(mesh.rank())] = error;
  exchange_with_peers(
      mesh, bytes, deadline,
      [&](int) {
        return MemoryHandle{static_cast<std::uint64_t>(error), -1};
      },
      [&](int peer, MemoryHandle verdict) {
        const Fd unwanted(verdict.fd);
        errors[static_cast<std::size_t>(peer)] = static_cast<int>(verdict.value);
      });
  for (const int rank : mesh.neighbours()) {
    const int cause = errors[static_cast<std::size_t>(rank)];
    if (cause == 0) continue;
    fail(ErrorCode::kSystem,
         "{}: {} could not get its part of {} bytes of memory shared by {} ranks: {}", mesh.self(),
         mesh.describe(rank), bytes, mesh.neighbours().size(),
         cause_and_remedy(cause, rank == mesh.rank()));
  }
}

}  // namespace paceline
