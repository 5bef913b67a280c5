// The UCX wire itself: two ranks as threads of this process, over UCX's TCP and its shared memory.

#include "paceline/engine/transport/ucx/ucx.h"

#include <array>
#include <cstring>
#include <fstream>
#include <future>
#include <thread>

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <link.h>
#include <poll.h>
#include <sys/socket.h>

#include "paceline/engine/core/check.h"
#include "paceline/engine/core/error.h"
#include "paceline/engine/core/error_text.h"

#include "tests/engine/transport/numbered_bytes.h"
#include "tests/harness/asleep.h"
#include "tests/harness/ucx_ranks.h"

namespace paceline {
namespace {

using namespace std::chrono_literals;
using harness::UcxTransports;

using Wires = std::array<std::unique_ptr<Wire>, 2>;

std::array<std::unique_ptr<SocketWire>, 2> make_sockets() {
  std::array<std::unique_ptr<SocketWire>, 2> wires = {std::make_unique<SocketWire>(2),
                                                      std::make_unique<SocketWire>(2)};
  for (int channel = 0; channel < kNumChannels; ++channel) {
    int ends[2];
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) != 0) {
      throw system_error("socketpair()");
    }
    wires[0]->connect(1, static_cast<Channel>(channel), Fd(ends[0]), nullptr);
    wires[1]->connect(0, static_cast<Channel>(channel), Fd(ends[1]), nullptr);
  }
  return wires;
}

std::string describe(int rank) { return rank_name(rank, rank); }

Wires make_wires() {
  auto sockets = make_sockets();
  auto other = std::async(std::launch::async, [&] {
    return over_ucx(sockets[1], {0}, describe, Deadline::after(10s));
  });
  auto mine = over_ucx(sockets[0], {1}, describe, Deadline::after(10s));
  return {std::move(mine), other.get()};
}

using Code = std::array<char, 16>;

Code code_in_memory(const void* function) {
  Code code;
  std::memcpy(code.data(), function, code.size());
  return code;
}

// The same bytes in the file from which the function was loaded.
Code code_in_file(const void* function) {
  struct Place {
    std::uintptr_t address;
    std::string path;
    std::uintptr_t offset = 0;
  } place{reinterpret_cast<std::uintptr_t>(function), "", 0};
  dl_iterate_phdr(
      [](dl_phdr_info* object, std::size_t, void* to) {
        auto& found = *static_cast<Place*>(to);
        for (int i = 0; i < object->dlpi_phnum; ++i) {
          const auto& segment = object->dlpi_phdr[i];
          const std::uintptr_t begin = object->dlpi_addr + segment.p_vaddr;
          if (segment.p_type != PT_LOAD || found.address < begin) continue;
          if (found.address >= begin + segment.p_filesz) continue;
          found.path = object->dlpi_name;
          found.offset = found.address - begin + segment.p_offset;
          return 1;
        }
        return 0;
      },
      &place);
  Code code{};
  std::ifstream file(place.path, std::ios::binary);
  file.seekg(static_cast<std::streamoff>(place.offset));
  file.read(code.data(), code.size());
  EXPECT_TRUE(file.good()) << place.path;
  return code;
}

void send_all(Wire& wire, int peer, Channel channel, std::span<const std::byte> bytes) {
  const auto deadline = Deadline::after(20s);
  while (!bytes.empty()) {
    ASSERT_FALSE(deadline.expired());
    const auto head = bytes.first(std::min<std::size_t>(bytes.size(), 48));
    const ssize_t sent = wire.send(peer, channel, head, bytes.subspan(head.size()));
    if (sent > 0) {
      bytes = bytes.subspan(static_cast<std::size_t>(sent));
      continue;
    }
    ASSERT_EQ(errno, EAGAIN);
    Interest interest{peer, channel, POLLOUT};
    wire.wait({&interest, 1}, 10ms);
  }
}

std::vector<std::byte> receive_all(Wire& wire, int peer, Channel channel, std::size_t count) {
  const auto deadline = Deadline::after(20s);
  std::vector<std::byte> bytes(count);
  std::size_t done = 0;
  while (done < count && !deadline.expired()) {
    const ssize_t got = wire.receive(peer, channel, std::span(bytes).subspan(done));
    if (got > 0) {
      done += static_cast<std::size_t>(got);
      continue;
    }
    if (errno != EAGAIN) break;
    Interest interest{peer, channel, POLLIN};
    wire.wait({&interest, 1}, 10ms);
  }
  bytes.resize(done);
  return bytes;
}

class UcxTest : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (!harness::can_use_ucx()) GTEST_SKIP() << "UCX: " << ucx_info().text;
  }
  const UcxTransports transports_{GetParam()};
};

TEST_P(UcxTest, bytes_arrive_whole_and_in_order_in_both_directions_on_both_channels) {
  const auto wires = make_wires();
  EXPECT_STREQ(wires[0]->name(), "ucx");
  for (const std::size_t count : {1ul, 48ul, 49ul, 8'191ul, 100'000ul, 5'000'001ul}) {
    const auto bytes = numbered(count);
    for (const Channel channel : {Channel::kData, Channel::kPointToPoint}) {
      std::jthread other([&] {
        EXPECT_EQ(receive_all(*wires[1], 0, channel, count), bytes);
        send_all(*wires[1], 0, channel, bytes);
      });
      send_all(*wires[0], 1, channel, bytes);
      EXPECT_EQ(receive_all(*wires[0], 1, channel, count), bytes);
    }
  }
}

TEST_P(UcxTest, what_is_looked_at_stays) {
  const auto wires = make_wires();
  const auto bytes = numbered(100);
  std::jthread other([&] { send_all(*wires[1], 0, Channel::kData, bytes); });
  Interest interest{1, Channel::kData, POLLIN};
  const auto deadline = Deadline::after(20s);
  while (!interest.is_ready && !deadline.expired()) wires[0]->wait({&interest, 1}, 10ms);
  std::array<std::byte, 4> seen{};
  EXPECT_EQ(wires[0]->peek(1, Channel::kData, seen), 4);
  EXPECT_TRUE(std::equal(seen.begin(), seen.end(), bytes.begin()));
  EXPECT_EQ(receive_all(*wires[0], 1, Channel::kData, bytes.size()), bytes);
}

TEST_P(UcxTest, what_was_sent_before_an_end_in_order_arrives) {
  auto wires = make_wires();
  const auto bytes = numbered(20'000);
  std::atomic<pid_t> sender = 0;
  std::jthread other([&] {
    send_all(*wires[1], 0, Channel::kData, bytes);
    sender = gettid();
    wires[1].reset();
  });
  harness::wait_until_asleep(sender);  // the sender has ended or waits for this rank
  EXPECT_EQ(receive_all(*wires[0], 1, Channel::kData, bytes.size()), bytes);
  wires[0].reset();
}

// Like after a failure: the caller may use the memory again, and the other end learns of it.
TEST_P(UcxTest, a_send_that_is_given_up_is_over_on_both_sides) {
  const auto wires = make_wires();
  auto bytes = numbered(64 << 20);
  const auto deadline = Deadline::after(20s);
  while (wires[0]->send(1, Channel::kData, bytes, {}) > 0) ASSERT_FALSE(deadline.expired());
  ASSERT_EQ(errno, EAGAIN);
  wires[0]->cancel(Channel::kData);
  bytes = {};
  std::array<std::byte, 4> into{};
  EXPECT_EQ(wires[0]->send(1, Channel::kData, into, {}), -1);
  EXPECT_EQ(errno, ECONNRESET);
  EXPECT_EQ(wires[0]->receive(1, Channel::kData, into), -1);
  EXPECT_EQ(errno, ECONNRESET);
}

TEST_P(UcxTest, addresses_that_are_none_are_refused) {
  for (const std::uint32_t size : {0u, 8u, 0xffffffffu}) {
    auto sockets = make_sockets();
    std::vector<std::byte> said(4 + 8);
    std::memcpy(said.data(), &size, sizeof size);
    ASSERT_GT(sockets[1]->send(0, Channel::kData, said, {}), 0);
    EXPECT_THROW(over_ucx(sockets[0], {1}, describe, Deadline::after(2s)), Error) << size;
    EXPECT_TRUE(sockets[0]) << "who fails keeps the sockets, to say why";
  }
}

TEST_P(UcxTest, a_peer_that_says_nothing_is_a_time_out_and_one_that_is_gone_is_lost) {
  auto sockets = make_sockets();
  const auto code_of = [&] {
    try {
      over_ucx(sockets[0], {1}, describe, Deadline::after(200ms));
    } catch (const Error& error) {
      return error.code();
    }
    return ErrorCode::kInvalid;
  };
  EXPECT_EQ(code_of(), ErrorCode::kTimeout);
  sockets[1].reset();
  EXPECT_EQ(code_of(), ErrorCode::kPeerLost);
}

// UCX would overwrite these functions with jumps while other threads call them, and would test them
// by moving the end of the heap, which other threads also move.
TEST_P(UcxTest, leaves_the_memory_calls_of_the_c_library_as_they_are) {
  const auto wires = make_wires();
  for (const char* name : {"mmap", "munmap", "brk", "sbrk", "madvise"}) {
    const void* const function = dlsym(RTLD_DEFAULT, name);
    EXPECT_EQ(code_in_memory(function), code_in_file(function)) << name;
  }
}

// If the library were not found, every UCX test would be skipped without notice.
TEST(Ucx, a_build_with_its_headers_finds_its_library) {
  const UcxInfo info = ucx_info();
  if (info.text.find("UCX's headers were not found") != std::string::npos ||
      info.text.find("PACELINE_WITH_UCX is OFF") != std::string::npos) {
    GTEST_SKIP() << info.text;
  }
  EXPECT_TRUE(info.available) << info.text;
}

INSTANTIATE_TEST_SUITE_P(Over, UcxTest, testing::Values("tcp", "posix"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace paceline
