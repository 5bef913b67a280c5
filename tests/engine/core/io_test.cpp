#include "paceline/engine/core/system/io.h"

#include <array>
#include <cerrno>
#include <csignal>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "paceline/engine/core/bytes.h"
#include "paceline/engine/core/system/fd.h"

namespace {

int interruptions = 0;  // how often posix_fallocate() will still be interrupted

}  // namespace

// Replaces the C library's function; a signal interrupts it.
extern "C" int posix_fallocate(int fd, off_t offset, off_t size) {
  if (interruptions > 0) return --interruptions, EINTR;
  return fallocate(fd, 0, offset, size) == 0 ? 0 : errno;
}

namespace paceline {
namespace {

using namespace std::chrono_literals;

struct Ends {
  Fd a, b;
};

Ends make_pipe(int flags = 0) {
  std::array<int, 2> ends{};
  EXPECT_EQ(pipe2(ends.data(), O_CLOEXEC | flags), 0);
  return {Fd(ends[0]), Fd(ends[1])};
}

Ends make_sockets() {
  std::array<int, 2> ends{};
  // The sockets block.
  EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()), 0);
  return {Fd(ends[0]), Fd(ends[1])};
}

std::vector<std::byte> numbers(std::size_t count) {
  std::vector<std::byte> bytes(count);
  for (std::size_t i = 0; i < count; ++i) bytes[i] = static_cast<std::byte>(i * 31 % 251);
  return bytes;
}

TEST(Io, whole_transfers_cross_a_pipe_that_is_much_smaller) {
  for (const int flags : {0, O_NONBLOCK}) {
    const Ends ends = make_pipe(flags);
    const auto sent = numbers(1 << 20);
    std::vector<std::byte> got(sent.size());
    std::jthread reader(
        [&] { EXPECT_EQ(read_whole(ends.a.get(), got), static_cast<ssize_t>(got.size())); });
    EXPECT_TRUE(write_whole(ends.b.get(), sent));
    reader.join();
    EXPECT_EQ(got, sent);
  }
}

TEST(Io, whole_transfers_cross_sockets_that_block) {
  const Ends ends = make_sockets();
  const auto sent = numbers(4 << 20);
  std::vector<std::byte> got(sent.size());
  std::jthread reader([&] {
    EXPECT_EQ(receive_whole(ends.a.get(), got, Deadline::after(60s)),
              static_cast<ssize_t>(got.size()));
  });
  EXPECT_TRUE(send_whole(ends.b.get(), sent, Deadline::after(60s)));
  reader.join();
  EXPECT_EQ(got, sent);
}

TEST(Io, an_end_cuts_what_is_read) {
  Ends ends = make_pipe();
  ASSERT_TRUE(write_whole(ends.b.get(), as_bytes("abc")));
  ends.b.reset();
  std::array<std::byte, 8> got{};
  EXPECT_EQ(read_whole(ends.a.get(), got), 3);
  EXPECT_EQ(read_whole(ends.a.get(), got), 0);
}

TEST(Io, no_call_waits_beyond_the_deadline) {
  const Ends sockets = make_sockets();
  const auto much = numbers(16 << 20);
  EXPECT_FALSE(send_whole(sockets.a.get(), much, Deadline::after(20ms)));
  EXPECT_EQ(errno, ETIMEDOUT);
  std::array<std::byte, 1> got{};
  EXPECT_EQ(receive_whole(sockets.a.get(), got, Deadline::after(20ms)), -1);
  EXPECT_EQ(errno, ETIMEDOUT);
  const Ends pipe = make_pipe(O_NONBLOCK);
  EXPECT_FALSE(write_whole(pipe.b.get(), much, Deadline::after(20ms)));
  EXPECT_EQ(errno, ETIMEDOUT);
}

TEST(Io, a_reader_that_has_gone_is_an_error_and_no_signal) {
  Ends sockets = make_sockets();
  sockets.b.reset();
  EXPECT_FALSE(send_whole(sockets.a.get(), as_bytes("x"), Deadline::never()));
  EXPECT_EQ(errno, EPIPE);
}

TEST(Io, files_are_read_and_written_at_their_places) {
  const Fd file(memfd_create("paceline-io-test", MFD_CLOEXEC));
  ASSERT_TRUE(write_whole_at(file.get(), 5, as_bytes("abcdef")));
  std::array<std::byte, 4> got{};
  EXPECT_EQ(read_whole_at(file.get(), 6, got), 4);
  EXPECT_EQ(to_string(got), "bcde");
  EXPECT_EQ(read_whole_at(file.get(), 9, got), 2);
  EXPECT_FALSE(write_whole_at(-1, 0, as_bytes("x")));
  EXPECT_EQ(errno, EBADF);
}

TEST(Io, the_room_of_a_file_is_taken_despite_signals) {
  const Fd file(memfd_create("paceline-io-test", MFD_CLOEXEC));
  interruptions = 3;
  EXPECT_TRUE(reserve_file(file.get(), 5000));
  EXPECT_EQ(interruptions, 0);
  EXPECT_EQ(lseek(file.get(), 0, SEEK_END), 5000);
  EXPECT_FALSE(reserve_file(-1, 5000));
  EXPECT_EQ(errno, EBADF);
}

TEST(Io, a_record_is_there_once) {
  const Fd event(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  std::uint64_t count = 0;
  EXPECT_FALSE(read_record(event.get(), count));
  ring(event.get());
  ring(event.get());
  EXPECT_TRUE(read_record(event.get(), count));
  EXPECT_EQ(count, 2U);
  EXPECT_FALSE(read_record(event.get(), count));
}

TEST(SendQueue, keeps_what_finds_no_room_in_its_order) {
  const Ends ends = make_sockets();
  const auto sent = numbers(8 << 20);
  SendQueue queue;
  queue.add(std::vector<std::byte>(sent.begin(), sent.begin() + (3 << 20)));
  EXPECT_TRUE(queue.flush(ends.a.get()));
  ASSERT_FALSE(queue.empty());
  queue.add(std::span(sent).subspan(3 << 20));
  std::vector<std::byte> got(sent.size());
  std::jthread reader([&] { receive_whole(ends.b.get(), got, Deadline::after(60s)); });
  while (!queue.empty()) {
    ASSERT_TRUE(await(ends.a.get(), POLLOUT, Deadline::after(60s)));
    ASSERT_TRUE(queue.flush(ends.a.get()));
  }
  reader.join();
  EXPECT_EQ(got, sent);
}

TEST(SendQueue, tells_of_a_broken_connection) {
  Ends ends = make_sockets();
  ends.b.reset();
  SendQueue queue;
  EXPECT_TRUE(queue.flush(ends.a.get()));
  queue.add(as_bytes("x"));
  EXPECT_FALSE(queue.flush(ends.a.get()));
  EXPECT_EQ(errno, EPIPE);
}

}  // namespace
}  // namespace paceline
