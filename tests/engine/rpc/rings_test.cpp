// Rings whose other end breaks the rules of rpc/FORMAT.md: such a ring is refused, or harms
// only its own connection.

#include <array>
#include <cstring>
#include <span>
#include <string>

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
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

class BrokenRings : public testing::Test {
 protected:
  BrokenRings()
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

TEST_F(BrokenRings, bytes_arrive_while_nobody_breaks_the_rules) {
  EXPECT_EQ(write("hello"), 5U);
  EXPECT_TRUE(callee_->has_data());
  EXPECT_EQ(read(), "hello");
  EXPECT_FALSE(callee_->has_data());
}

TEST_F(BrokenRings, a_writer_that_is_too_far_ahead_or_behind_is_refused) {
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

TEST_F(BrokenRings, a_reader_that_claims_what_was_not_written_gets_nothing) {
  ASSERT_EQ(write("hello"), 5U);
  for (const std::uint64_t position : {std::uint64_t{6}, ~std::uint64_t{0} >> 1}) {
    set(kRead, position);
    EXPECT_EQ(write("more"), 0U) << position;
  }
  set(kRead, 0);
  EXPECT_EQ(write("more"), 4U);
  EXPECT_EQ(read(), "hellomore");
}

TEST_F(BrokenRings, a_file_of_another_size_or_without_a_seal_is_refused) {
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
