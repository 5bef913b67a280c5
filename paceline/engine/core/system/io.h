#pragma once

// The system calls that move bytes. A signal may interrupt any of them, it may move fewer bytes
// than it was given, and a descriptor that poll() reported as ready may still answer EAGAIN. All of
// that is handled here and nowhere else: an interrupted call is repeated, a `_whole` function goes
// on until everything has been moved, and the caller of a `_some` function expects fewer bytes and
// EAGAIN. SIGPIPE is never raised by a socket.
//
// These functions neither throw, log nor allocate. Those without a Deadline may be called in a
// signal handler and before main(); those with one take a mutex (Vigil).
//
// Thread safety: free functions; one reader and one writer of a descriptor at a time.

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

// One call: the number of bytes, 0 at the end, or -1 and errno.
ssize_t read_some(int fd, std::span<std::byte> into);
ssize_t write_some(int fd, std::span<const std::byte> bytes);
// As read_some() on a descriptor that is non-blocking: EAGAIN only where poll() finds nothing
// either, so that what is there can be read to its end.
ssize_t read_ready(int fd, std::span<std::byte> into);
// As the first two, on sockets. They never wait, also where the socket's calls would.
ssize_t receive_some(int socket, std::span<std::byte> into, int flags = 0);
ssize_t send_some(int socket, std::span<const std::byte> bytes);
ssize_t receive_message(int socket, msghdr& message);
ssize_t send_message(int socket, const msghdr& message);
// The next connection of a listening socket, or -1 and errno. It never waits, provided that
// `listener` is non-blocking.
int accept_one(int listener);

// How many entries are ready, 0 once `limit` has passed; without a limit when that is negative. -1
// and errno for an error other than a signal.
int poll_for(std::span<pollfd> entries, std::chrono::milliseconds limit);
// Waits until `fd` is ready for `events`. False and errno otherwise; ETIMEDOUT at the deadline.
bool await(int fd, short events, Deadline deadline);

// Reads until `into` is full or the input ends: the number of bytes, or -1 and errno.
ssize_t read_whole(int fd, std::span<std::byte> into);
ssize_t read_whole_at(int fd, off_t offset, std::span<std::byte> into);
ssize_t receive_whole(int socket, std::span<std::byte> into, Deadline deadline);
// Writes everything. False and errno otherwise; ETIMEDOUT at the deadline.
bool write_whole(int fd, std::span<const std::byte> bytes, Deadline deadline = Deadline::never());
bool write_whole_at(int fd, off_t offset, std::span<const std::byte> bytes);
bool send_whole(int socket, std::span<const std::byte> bytes, Deadline deadline);

// Reserves the file's first `bytes` now: touching a mapping of them is then no SIGBUS, even when
// the disk or the memory is full. False and errno otherwise: EFBIG, without the signal SIGXFSZ,
// above the limit of ulimit -f.
bool reserve_file(int fd, std::size_t bytes);

// A descriptor that gives one record a call (signalfd, timerfd, eventfd): false when it has none.
template <class Record>
bool read_record(int fd, Record& record) {
  return read_some(fd, std::as_writable_bytes(std::span(&record, 1))) == sizeof record;
}
// Wakes the threads that wait for an eventfd.
void ring(int eventfd);

// The output buffer of a non-blocking socket: it sends some bytes now, and the rest once poll()
// reports room (POLLOUT). Thread safety: none.
class SendQueue {
 public:
  bool empty() const { return sent_ == bytes_.size(); }
  std::size_t size() const { return bytes_.size() - sent_; }
  void add(std::span<const std::byte> bytes);
  // Without a copy where nothing waits yet.
  void add(std::vector<std::byte>&& bytes);
  // Sends what `socket` takes now. False and errno when the connection is broken.
  bool flush(int socket);

 private:
  std::vector<std::byte> bytes_;
  std::size_t sent_ = 0;  // of them
};

// A program may be started with standard streams closed (`>&-`). What it opens next would get their
// numbers, and a socket with the number of stdout would get everything that is printed. This call
// holds the numbers of the standard streams that are closed: reading finds the end, and writing
// fails as before (EBADF), so that lost output is noticed. Call it before anything is opened;
// later calls do nothing.
void hold_standard_streams() noexcept;

// Whether a line may be written over itself: true when `fd` is the terminal that this process was
// started from and TERM names one that knows escape codes. paceline run and Open MPI's mpirun give
// their ranks a terminal of their own making, whatever their output goes to: that is not the
// terminal they were started from.
bool can_draw_on(int fd);

}  // namespace paceline
