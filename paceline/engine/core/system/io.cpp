#include "paceline/engine/core/system/io.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <utility>

#include <fcntl.h>
#include <sys/resource.h>
#include <termios.h>
#include <unistd.h>

#include "paceline/engine/core/awake_clock.h"
#include "paceline/engine/core/system/fd.h"

namespace paceline {

namespace {

// Repeats `call` as long as a signal interrupts it.
template <class Call>
ssize_t uninterrupted(const Call& call) {
  ssize_t count = 0;
  do {
    count = call();
  } while (count < 0 && errno == EINTR);
  return count;
}

// Calls `move(done)`, which moves some of the bytes after the first `done`, until all `size` bytes
// have been moved. Returns the number moved before the end of the input, or -1 and errno.
template <class Move>
ssize_t move_whole(int fd, short events, std::size_t size, Deadline deadline, const Move& move) {
  std::size_t done = 0;
  while (done < size) {
    const ssize_t count = move(done);
    if (count == 0) break;
    if (count > 0) {
      done += static_cast<std::size_t>(count);
    } else if (errno != EAGAIN || !await(fd, events, deadline)) {
      return -1;
    }
  }
  return static_cast<ssize_t>(done);
}

// A write that moves no bytes and reports no error would never make progress, so it counts as EIO.
bool is_whole(ssize_t written, std::size_t size) {
  if (written >= 0 && static_cast<std::size_t>(written) < size) errno = EIO;
  return written == static_cast<ssize_t>(size);
}

}  // namespace

ssize_t read_some(int fd, std::span<std::byte> into) {
  return uninterrupted([&] { return ::read(fd, into.data(), into.size()); });
}

ssize_t write_some(int fd, std::span<const std::byte> bytes) {
  return uninterrupted([&] { return ::write(fd, bytes.data(), bytes.size()); });
}

ssize_t read_ready(int fd, std::span<std::byte> into) {
  for (;;) {
    const ssize_t got = read_some(fd, into);
    if (got >= 0 || errno != EAGAIN) return got;
    pollfd entry{fd, POLLIN, 0};
    if (poll_for({&entry, 1}, std::chrono::milliseconds(0)) > 0) continue;
    errno = EAGAIN;
    return -1;
  }
}

ssize_t receive_some(int socket, std::span<std::byte> into, int flags) {
  return uninterrupted(
      [&] { return ::recv(socket, into.data(), into.size(), flags | MSG_DONTWAIT); });
}

ssize_t send_some(int socket, std::span<const std::byte> bytes) {
  return uninterrupted(
      [&] { return ::send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT); });
}

ssize_t receive_message(int socket, msghdr& message) {
  return uninterrupted(
      [&] { return ::recvmsg(socket, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT); });
}

ssize_t send_message(int socket, const msghdr& message) {
  return uninterrupted([&] { return ::sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT); });
}

ssize_t send_with_descriptors(int socket, std::span<const std::byte> bytes,
                              std::span<const int> descriptors) {
  iovec data{const_cast<std::byte*>(bytes.data()), bytes.size()};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  alignas(cmsghdr) std::array<char, CMSG_SPACE(kMaxDescriptors * sizeof(int))> control{};
  message.msg_control = control.data();
  message.msg_controllen = CMSG_SPACE(descriptors.size_bytes());
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(descriptors.size_bytes());
  std::memcpy(CMSG_DATA(header), descriptors.data(), descriptors.size_bytes());
  return send_message(socket, message);
}

Received receive_with_descriptors(int socket, std::span<std::byte> bytes, std::span<Fd> into,
                                  Wait wait) {
  iovec data{bytes.data(), bytes.size()};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  alignas(cmsghdr) std::array<char, CMSG_SPACE(kMaxDescriptors * sizeof(int))> control{};
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  Received received;
  const int flags = MSG_CMSG_CLOEXEC | (wait == Wait::kYes ? 0 : MSG_DONTWAIT);
  received.bytes = uninterrupted([&] { return ::recvmsg(socket, &message, flags); });
  if (received.bytes < 0) return received;
  received.is_cut = (message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0;
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr;
       header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    std::array<int, kMaxDescriptors> descriptors{};
    std::memcpy(descriptors.data(), CMSG_DATA(header),
                std::min(count, descriptors.size()) * sizeof(int));
    for (std::size_t i = 0; i < std::min(count, descriptors.size()); ++i) {
      Fd descriptor(descriptors[i]);
      if (received.descriptors == into.size()) {
        received.is_cut = true;
        continue;  // the Fd closes the descriptor
      }
      into[received.descriptors++] = std::move(descriptor);
    }
  }
  return received;
}

int accept_one(int listener) {
  const auto accept = [&] {
    return static_cast<ssize_t>(
        ::accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  };
  ssize_t connection = 0;
  do {
    connection = uninterrupted(accept);
  } while (connection < 0 && errno == ECONNABORTED);  // the other end has already closed it
  return static_cast<int>(connection);
}

// Reads the clock only after a signal has interrupted the wait.
int poll_for(std::span<pollfd> entries, std::chrono::milliseconds limit) {
  int ready = ::poll(entries.data(), entries.size(), static_cast<int>(limit.count()));
  if (ready >= 0 || errno != EINTR) return ready;
  const Deadline deadline = limit.count() < 0 ? Deadline::never() : Deadline::after(limit);
  do {
    ready = ::poll(entries.data(), entries.size(), deadline.poll_timeout_ms());
  } while (ready < 0 && errno == EINTR);
  return ready;
}

bool await(int fd, short events, Deadline deadline) {
  const bool ends = deadline.moment() != Deadline::Clock::time_point::max();
  for (Vigil vigil;;) {
    pollfd entry{fd, events, 0};
    const int ready =
        poll_for({&entry, 1}, std::chrono::milliseconds(deadline.poll_timeout_ms(Vigil::kRound)));
    if (ready != 0) return ready > 0;
    if (ends && vigil.sees_passed(deadline)) {
      errno = ETIMEDOUT;
      return false;
    }
  }
}

ssize_t read_whole(int fd, std::span<std::byte> into) {
  return move_whole(fd, POLLIN, into.size(), Deadline::never(),
                    [&](std::size_t done) { return read_some(fd, into.subspan(done)); });
}

ssize_t read_whole_at(int fd, off_t offset, std::span<std::byte> into) {
  return move_whole(fd, POLLIN, into.size(), Deadline::never(), [&](std::size_t done) {
    const auto rest = into.subspan(done);
    const off_t place = offset + static_cast<off_t>(done);
    return uninterrupted([&] { return ::pread(fd, rest.data(), rest.size(), place); });
  });
}

ssize_t receive_whole(int socket, std::span<std::byte> into, Deadline deadline) {
  return move_whole(socket, POLLIN, into.size(), deadline,
                    [&](std::size_t done) { return receive_some(socket, into.subspan(done)); });
}

bool write_whole(int fd, std::span<const std::byte> bytes, Deadline deadline) {
  return is_whole(move_whole(fd, POLLOUT, bytes.size(), deadline,
                             [&](std::size_t done) { return write_some(fd, bytes.subspan(done)); }),
                  bytes.size());
}

bool write_whole_at(int fd, off_t offset, std::span<const std::byte> bytes) {
  const ssize_t written =
      move_whole(fd, POLLOUT, bytes.size(), Deadline::never(), [&](std::size_t done) {
        const auto rest = bytes.subspan(done);
        const off_t place = offset + static_cast<off_t>(done);
        return uninterrupted([&] { return ::pwrite(fd, rest.data(), rest.size(), place); });
      });
  return is_whole(written, bytes.size());
}

bool send_whole(int socket, std::span<const std::byte> bytes, Deadline deadline) {
  return is_whole(
      move_whole(socket, POLLOUT, bytes.size(), deadline,
                 [&](std::size_t done) { return send_some(socket, bytes.subspan(done)); }),
      bytes.size());
}

// posix_fallocate() returns its error and does not set errno.
bool reserve_file(int fd, std::size_t bytes) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_FSIZE, &limit) == 0 && bytes > limit.rlim_cur) {
    errno = EFBIG;
    return false;
  }
  int error = 0;
  do {
    error = ::posix_fallocate(fd, 0, static_cast<off_t>(bytes));
  } while (error == EINTR);
  if (error != 0) errno = error;
  return error == 0;
}

// The write can only fail because the counter is full, and then the eventfd is readable anyway.
void ring(int eventfd) {
  const std::uint64_t one = 1;
  write_some(eventfd, std::as_bytes(std::span(&one, 1)));
}

void SendQueue::add(std::span<const std::byte> bytes) {
  bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
}

void SendQueue::add(std::vector<std::byte>&& bytes) {
  if (!empty()) return add(std::span<const std::byte>(bytes));
  bytes_ = std::move(bytes);
  sent_ = 0;
}

bool SendQueue::flush(int socket) {
  while (!empty()) {
    const ssize_t sent = send_some(socket, std::span<const std::byte>(bytes_).subspan(sent_));
    if (sent < 0) return errno == EAGAIN;
    sent_ += static_cast<std::size_t>(sent);
  }
  bytes_ = {};
  sent_ = 0;
  return true;
}

// open() returns the lowest free number, which is `stream`, because all lower numbers are already
// in use.
void hold_standard_streams() noexcept {
  for (int stream = STDIN_FILENO; stream <= STDERR_FILENO; ++stream) {
    if (fcntl(stream, F_GETFD) < 0 && errno == EBADF) open("/dev/null", O_RDONLY);
  }
}

bool can_draw_on(int fd) {
  const char* const kind = std::getenv("TERM");
  const std::string_view name = kind != nullptr ? kind : "";
  return !name.empty() && name != "dumb" && tcgetsid(fd) != -1;  // -1: not our terminal
}

}  // namespace paceline
