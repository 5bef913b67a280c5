#include "paceline/transport/memory_exchange.h"

#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <system_error>
#include <vector>

#include <poll.h>
#include <sys/socket.h>

#include "paceline/core/check.h"
#include "paceline/transport/advice.h"

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

using ControlBuffer = std::array<char, CMSG_SPACE(sizeof(int))>;

// What sendmsg() and recvmsg() return, for an offer with a descriptor.
ssize_t send_with_descriptor(int socket, const Offer& offer, int fd) {
  iovec data{const_cast<Offer*>(&offer), sizeof offer};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  alignas(cmsghdr) ControlBuffer control{};
  if (fd >= 0) {
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof fd);
    std::memcpy(CMSG_DATA(header), &fd, sizeof fd);
  }
  return ::sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
}

ssize_t receive_with_descriptor(int socket, Offer& offer, Fd& fd) {
  iovec data{&offer, sizeof offer};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  alignas(cmsghdr) ControlBuffer control{};
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  const ssize_t got = ::recvmsg(socket, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
  if (got <= 0) return got;
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr;
       header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level == SOL_SOCKET && header->cmsg_type == SCM_RIGHTS) {
      int received = -1;
      std::memcpy(&received, CMSG_DATA(header), sizeof received);
      fd.reset(received);
    }
  }
  return got;
}

// An offer is smaller than any channel's buffer, so it is sent whole or not at all.
void send_offer(Mesh& mesh, int peer, const Offer& offer, int fd) {
  const int socket = mesh.wire().socket(peer, Channel::kData);
  const ssize_t sent =
      fd >= 0 ? send_with_descriptor(socket, offer, fd)
              : mesh.wire().send(peer, Channel::kData, std::as_bytes(std::span(&offer, 1)), {});
  if (sent == static_cast<ssize_t>(sizeof offer)) return;
  const int error = errno;
  if (sent < 0 && (error == EPIPE || error == ECONNRESET)) {
    mesh.throw_lost(peer, "is gone: it closed the connection");
  }
  throw system_error(
      fmt::format("rank {}: passing a block of memory to {}", mesh.rank(), mesh.describe(peer)),
      error);
}

// False while nothing has come. The descriptor, if one came, is owned by `fd`.
bool receive_offer(Mesh& mesh, int peer, Offer& offer, Fd& fd) {
  const int socket = mesh.wire().socket(peer, Channel::kData);
  const ssize_t got = socket >= 0 ? receive_with_descriptor(socket, offer, fd)
                                  : mesh.receive(peer, Channel::kData,
                                                 std::as_writable_bytes(std::span(&offer, 1)));
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return false;
  if (got < 0) mesh.throw_if_own(errno, peer, "receiving from");
  if (got <= 0) mesh.throw_lost(peer, "is gone: it closed the connection");
  if (got != static_cast<ssize_t>(sizeof offer) || offer.magic != Offer::kMagic) {
    fail(ErrorCode::kCorrupt, "rank {}: {} sent bytes that are no offer of shared memory",
         mesh.rank(), mesh.describe(peer));
  }
  return true;
}

void wait_for_offer(Mesh& mesh, int peer, Deadline deadline, std::size_t bytes, Offer& offer,
                    Fd& fd) {
  const auto begin = Deadline::Clock::now();
  while (!receive_offer(mesh, peer, offer, fd)) {
    Interest interest{peer, Channel::kData, POLLIN};
    mesh.wire().wait({&interest, 1}, 10ms);
    mesh.throw_if_failed();
    if (const Awaited awaited{peer}; mesh.is_asked()) mesh.answer({&awaited, 1});
    if (deadline.expired()) {
      fail(ErrorCode::kTimeout,
           "rank {}: allocating {} shared bytes in group {} timed out after {:.1f} s: {} has not "
           "allocated its block; {}",
           mesh.rank(), bytes, mesh.name(),
           std::chrono::duration<double>(Deadline::Clock::now() - begin).count(),
           mesh.describe(peer), kAdviceForLate);
    }
  }
}

// Only a rank itself knows its limit.
std::string cause_and_remedy(int cause, bool is_own) {
  if (cause == EMFILE && is_own) return describe_errno(cause);
  return fmt::format("{}; {}", std::generic_category().message(cause),
                     cause == EMFILE ? "raise the limit there: ulimit -n"
                                     : "free memory or choose --transport tcp");
}

}  // namespace

void exchange_with_peers(Mesh& mesh, std::size_t bytes, Deadline deadline,
                         const std::function<MemoryHandle(int peer)>& make,
                         const std::function<void(int peer, MemoryHandle handle)>& take) {
  for (const int peer : mesh.neighbours()) {
    if (peer == mesh.rank()) continue;
    const auto handle = make(peer);
    send_offer(mesh, peer, {.bytes = bytes, .value = handle.value}, handle.fd);
  }
  for (const int peer : mesh.neighbours()) {
    if (peer == mesh.rank()) continue;
    Offer offer;
    Fd fd;
    wait_for_offer(mesh, peer, deadline, bytes, offer, fd);
    check(offer.bytes == bytes, "rank {}: asked for {} shared bytes, but {} asked for {}",
          mesh.rank(), bytes, mesh.describe(peer), offer.bytes);
    take(peer, {offer.value, fd.release()});
  }
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
         "rank {}: {} could not get its part of {} bytes of memory shared by {} ranks: {}",
         mesh.rank(), mesh.describe(rank), bytes, mesh.neighbours().size(),
         cause_and_remedy(cause, rank == mesh.rank()));
  }
}

}  // namespace paceline
