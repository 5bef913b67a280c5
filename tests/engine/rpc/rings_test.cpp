// Rings of shared memory. A ring whose other end breaks the rules of rpc/FORMAT.md is refused, or
// harms only its own connection.

#include <array>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#include "paceline/engine/rpc/protocol/shm_channel.h"
#include "paceline/engine/transport/shared_memory.h"

#include "tests/harness/expect_error.h"

namespace paceline::rpc {
namespace {

constexpr std::size_t kFileBytes = 4096 + 2 * Rings::kBytes;
// Offsets of the positions for the direction from caller to callee, as in rpc/FORMAT.md.
constexpr std::size_t kWritten = 0, kRead = 64;

Fd copy_of(int descriptor) { return Fd(::fcntl(descriptor, F_DUPFD_CLOEXEC, 0)); }

class RingPair : public testing::Test {
 protected:
  RingPair()
      : caller_(Rings::make()),
        callee_(Rings::of_file(copy_of(caller_->descriptor()))),
        memory_(Mapping::of_file(copy_of(caller_->descriptor()), kFileBytes, Pages::kOnTouch)) {}

  std::size_t write(std::string text) {
    const iovec piece{text.data(), text.size()};
    return static_cast<std::size_t>(caller_->write(std::span(&piece, 1)));
  }
  std::string read() {
    std::array<std::byte, 16> into{};
    const std::size_t count = callee_->read(into);
    return {reinterpret_cast<const char*>(into.data()), count};
  }
  void set(std::size_t place, std::uint64_t position) {
    std::memcpy(memory_.data() + place, &position, sizeof position);
  }

  std::unique_ptr<Rings> caller_, callee_;
  Mapping memory_;
};

TEST_F(RingPair, bytes_arrive_while_nobody_breaks_the_rules) {
  EXPECT_EQ(write("hello"), 5U);
  EXPECT_TRUE(callee_->has_data());
  EXPECT_EQ(read(), "hello");
  EXPECT_FALSE(callee_->has_data());
}

// A thread that spins on the core of the other end would keep it from running.
TEST_F(RingPair, know_whether_the_writer_wrote_on_the_readers_core) {
  cpu_set_t all;
  ASSERT_EQ(::sched_getaffinity(0, sizeof all, &all), 0);
  std::vector<int> cpus;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &all)) cpus.push_back(cpu);
  }
  const auto move_to = [](int cpu) {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    ASSERT_EQ(::sched_setaffinity(0, sizeof one, &one), 0);
  };
  for (const int cpu : {cpus.front(), cpus.back()}) {
    move_to(cpu);
    EXPECT_EQ(write("x"), 1U);
    EXPECT_TRUE(callee_->writer_shares_core());
  }
  move_to(cpus.front());
  EXPECT_EQ(callee_->writer_shares_core(), cpus.size() == 1);
  EXPECT_EQ(::sched_setaffinity(0, sizeof all, &all), 0);
}

TEST_F(RingPair, a_writer_that_is_too_far_ahead_or_behind_is_refused) {
  ASSERT_EQ(write("hello"), 5U);
  ASSERT_EQ(read(), "hello");
  for (const std::uint64_t written : {std::uint64_t{5} + Rings::kBytes + 1, std::uint64_t{4},
                                      std::uint64_t{0}, ~std::uint64_t{0}}) {
    set(kWritten, written);
    expect_error(ErrorCode::kCorrupt, {"wrote an invalid position to its shared memory"},
                 [&] { read(); });
  }
  set(kWritten, 5);
  EXPECT_EQ(read(), "") << "the reader has not moved";
}

TEST_F(RingPair, a_reader_that_claims_what_was_not_written_gets_nothing) {
  ASSERT_EQ(write("hello"), 5U);
  for (const std::uint64_t position : {std::uint64_t{6}, ~std::uint64_t{0} >> 1}) {
    set(kRead, position);
    EXPECT_EQ(write("more"), 0U) << position;
  }
  set(kRead, 0);
  EXPECT_EQ(write("more"), 4U);
  EXPECT_EQ(read(), "hellomore");
}

TEST_F(RingPair, a_file_of_another_size_or_without_a_seal_is_refused) {
  expect_error(ErrorCode::kCorrupt, {"shared memory cannot be used"},
               [] { Rings::of_file(make_sealed_file(kFileBytes - 4096)); });
  expect_error(ErrorCode::kCorrupt, {"shared memory cannot be used"}, [] {
    Fd file(::memfd_create("unsealed", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    ASSERT_EQ(::ftruncate(file.get(), kFileBytes), 0);
    Rings::of_file(std::move(file));
  });
}

}  // namespace
}  // namespace paceline::rpc
