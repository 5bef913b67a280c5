#pragma once

// The system calls that move bytes. A signal may interrupt any of them, a call may move fewer bytes
// than requested, and a descriptor that poll() reported as ready may still answer EAGAIN. These
// functions handle all three cases: an interrupted call is repeated, a `_whole` function continues
// until everything has been moved, and the caller of a `_some` function must expect fewer bytes and
// EAGAIN. The functions that send on sockets never raise SIGPIPE.
//
// The free functions neither throw, log nor allocate. Functions without a Deadline may be called in
// a signal handler and before main(); functions with a Deadline take a mutex (Vigil).
//
// Thread safety: any thread may call; a descriptor may have one reader and one writer at a time.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <poll.h>
#include <sys/socket.h>
#include <sys/types.h>

#include "paceline/engine/core/deadline.h"

namespace paceline {

// One system call each. Returns the number of bytes, 0 at the end of the input, or -1 and errno.
ssize_t read_some(int fd, std::span<std::byte> into);
ssize_t write_some(int fd, std::span<const std::byte> bytes);
// Like read_some(), for a non-blocking descriptor: fails with EAGAIN only if poll() reports no
// input either, so that a caller can drain the descriptor.
ssize_t read_ready(int fd, std::span<std::byte> into);
// Like read_some() and write_some(), on sockets. They never wait, even on a blocking socket.
ssize_t receive_some(int socket, std::span<std::byte> into, int flags = 0);
ssize_t send_some(int socket, std::span<const std::byte> bytes);
ssize_t receive_message(int socket, msghdr& message);
ssize_t send_message(int socket, const msghdr& message);
// Accepts the next connection of a listening socket; returns -1 and sets errno if there is none. It
// never waits, provided that `listener` is non-blocking.
int accept_one(int listener);

// Returns the number of entries that are ready, 0 once `limit` has passed, or -1 and errno for an
// error other than EINTR. A negative `limit` means no limit.
int poll_for(std::span<pollfd> entries, std::chrono::milliseconds limit);
// Waits until `fd` is ready for `events`. On failure returns false and sets errno: ETIMEDOUT at the
// deadline.
bool await(int fd, short events, Deadline deadline);

// Reads until `into` is full or the input ends. Returns the number of bytes, or -1 and errno.
ssize_t read_whole(int fd, std::span<std::byte> into);
ssize_t read_whole_at(int fd, off_t offset, std::span<std::byte> into);
ssize_t receive_whole(int socket, std::span<std::byte> into, Deadline deadline);
// Writes all bytes. On failure returns false and sets errno: ETIMEDOUT at the deadline.
bool write_whole(int fd, std::span<const std::byte> bytes, Deadline deadline = Deadline::never());
bool write_whole_at(int fd, off_t offset, std::span<const std::byte> bytes);
bool send_whole(int socket, std::span<const std::byte> bytes, Deadline deadline);

// Reserves the file's first `bytes` now, so that touching a mapping of them raises no SIGBUS, even
// when the disk or the memory is full. On failure returns false and sets errno; beyond the limit of
// `ulimit -f`, errno is EFBIG and no SIGXFSZ is raised.
bool reserve_file(int fd, std::size_t bytes);

// Reads one record from a signalfd, timerfd or eventfd. Returns false when there is none.
template <class Record>
bool read_record(int fd, Record& record) {
  return read_some(fd, std::as_writable_bytes(std::span(&record, 1))) == sizeof record;
}
// Wakes the threads that wait on an eventfd.
void ring(int eventfd);

// The output buffer of a non-blocking socket. flush() sends as much as the socket takes; call it
// again once poll() reports room (POLLOUT). Thread safety: none.
class SendQueue {
 public:
  bool empty() const { return sent_ == bytes_.size(); }
  std::size_t size() const { return bytes_.size() - sent_; }
  void add(std::span<const std::byte> bytes);
  // As above, without a copy if the queue is empty.
  void add(std::vector<std::byte>&& bytes);
  // Sends as many bytes as `socket` takes now. Returns false and sets errno when the connection is
  // broken.
  bool flush(int socket);

 private:
  std::vector<std::byte> bytes_;
  std::size_t sent_ = 0;  // how many of bytes_ have been sent
};

// A program may be started with standard streams closed (`>&-`). The next files that it opens would
// get their numbers, and a socket with the number of stdout would receive everything that is
// printed. This function occupies the numbers of the closed standard streams: reading from them
// reports the end of the file, and writing still fails with EBADF, so that lost output is noticed.
// Call it before anything is opened; later calls do nothing.
void hold_standard_streams() noexcept;

// Whether a program may redraw a line in place: true when `fd` is the controlling terminal of this
// process's session and TERM names a terminal with escape codes. paceline run and Open MPI's mpirun
// give their ranks pseudo-terminals, which are not controlling terminals, wherever the output goes.
bool can_draw_on(int fd);

}  // namespace paceline
