#include <array>
#include <cstring>
#include <thread>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include "paceline/engine/transport/host_memory.h"
#include "paceline/engine/transport/shared_memory.h"

#include "tests/harness/raw_mesh.h"
#include "tests/harness/says.h"

namespace paceline {
namespace {

using harness::make_raw_mesh;
using harness::RawMesh;
using harness::Says;
using namespace std::chrono_literals;

constexpr std::size_t kBytes = 8192;

struct Offer {
  std::uint64_t magic = 0x4f4c5001;
  std::uint64_t bytes = kBytes;
  std::uint64_t value = 1;
};

// Sends the offer in pieces of at most `piece` bytes, the descriptor with the first.
void offer(const RawMesh& raw, const Offer& offer, int fd, std::size_t piece = sizeof(Offer)) {
  iovec data{const_cast<Offer*>(&offer), piece};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  if (fd >= 0) {
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof fd);
    std::memcpy(CMSG_DATA(header), &fd, sizeof fd);
  }
  ASSERT_EQ(::sendmsg(raw.end(Channel::kData).get(), &message, MSG_NOSIGNAL),
            static_cast<ssize_t>(piece));
  for (std::size_t sent = piece; sent < sizeof offer; sent += piece) {
    const std::size_t count = std::min(piece, sizeof offer - sent);
    raw.send(Channel::kData, reinterpret_cast<const char*>(&offer) + sent, count);
  }
}

Fd make_file(std::size_t bytes, bool sealed) {
  Fd file(memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  EXPECT_EQ(ftruncate(file.get(), static_cast<off_t>(bytes)), 0);
  if (sealed) {
    EXPECT_EQ(fcntl(file.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW), 0);
  }
  return file;
}

// Allocates with a peer that agrees to everything. Returns the error, or nullopt on success.
std::optional<Error> allocate_shm(RawMesh& raw, std::chrono::milliseconds limit = 5s) {
  ShmMemory memory(*raw.mesh);
  try {
    const auto blocks = memory.allocate(kBytes, Pages::kPresent, Deadline::after(limit));
    blocks->of(1)[kBytes - 1] = std::byte{1};
  } catch (const Error& error) {
    return error;
  }
  return {};
}

TEST(ShmMemory, takes_offers_in_pieces) {
  for (const std::size_t piece : {1u, 7u, 23u}) {
    auto raw = make_raw_mesh();
    const Fd file = make_file(kBytes, true);
    offer(raw, {}, file.get(), piece);
    offer(raw, {.value = 0}, -1, piece);
    const auto error = allocate_shm(raw);
    EXPECT_FALSE(error) << piece << ": " << error->what();
  }
}

TEST(ShmMemory, takes_a_peers_sealed_file) {
  auto raw = make_raw_mesh();
  const Fd file = make_file(kBytes, true);
  offer(raw, {}, file.get());
  offer(raw, {.value = 0}, -1);
  const auto error = allocate_shm(raw);
  EXPECT_FALSE(error) << error->what();
}

// The peer has made none of its pages present, so the test sees which rank does.
TEST(ShmMemory, brings_its_own_pages_and_those_of_peers_only_when_all_are_to_be_present) {
  for (const Pages pages : {Pages::kPresent, Pages::kOwnPresent, Pages::kOnTouch}) {
    auto raw = make_raw_mesh();
    const Fd file = make_file(kBytes, true);
    offer(raw, {}, file.get());
    offer(raw, {.value = 0}, -1);
    ShmMemory memory(*raw.mesh);
    const auto blocks = memory.allocate(kBytes, pages, Deadline::after(5s));
    const auto is_present = [&](int rank) {
      std::array<unsigned char, 2> present{};
      EXPECT_EQ(mincore(blocks->of(rank), kBytes, present.data()), 0);
      return (present[0] & present[1] & 1) != 0;
    };
    EXPECT_EQ(is_present(0), pages != Pages::kOnTouch);
    EXPECT_EQ(is_present(1), pages == Pages::kPresent);
    blocks->of(1)[0] = blocks->of(1)[kBytes - 1] = std::byte{1};
    EXPECT_TRUE(is_present(1));
  }
}

TEST(ShmMemory, refuses_files_that_are_too_small_or_may_shrink_or_are_not_memory) {
  const Fd small = make_file(kBytes / 2, true);
  const Fd may_shrink = make_file(kBytes, false);
  const Fd device(::open("/dev/null", O_RDWR | O_CLOEXEC));
  for (const int fd : {small.get(), may_shrink.get(), device.get()}) {
    auto raw = make_raw_mesh();
    offer(raw, {}, fd);
    offer(raw, {.value = 0}, -1);
    const auto error = allocate_shm(raw);
    ASSERT_TRUE(error);
    EXPECT_EQ(error->code(), ErrorCode::kSystem) << error->what();
  }
}

TEST(ShmMemory, a_peer_that_offers_nothing_and_says_that_all_is_well_is_corrupt) {
  auto raw = make_raw_mesh();
  offer(raw, {.value = 0}, -1);
  offer(raw, {.value = 0}, -1);
  EXPECT_EQ(allocate_shm(raw)->code(), ErrorCode::kCorrupt);
}

TEST(ShmMemory, a_peer_that_got_no_memory_is_named_with_its_cause) {
  auto raw = make_raw_mesh();
  offer(raw, {.value = 0}, -1);
  offer(raw, {.value = ENOSPC}, -1);
  const auto error = allocate_shm(raw);
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), ErrorCode::kSystem);
  EXPECT_THAT(error->what(), testing::AllOf(Says("memory.part_not_got", 1, "box"),
                                            testing::HasSubstr("No space left")));
}

TEST(ShmMemory, other_sizes_garbage_silence_and_death_are_typed_errors) {
  auto raw = make_raw_mesh();
  offer(raw, {.bytes = kBytes * 2}, -1);
  EXPECT_EQ(allocate_shm(raw)->code(), ErrorCode::kInvalid);
  raw = make_raw_mesh();
  raw.send(Channel::kData, "GET / HTTP/1.1\r\n\r\n and more", 27);
  EXPECT_EQ(allocate_shm(raw)->code(), ErrorCode::kCorrupt);
  raw = make_raw_mesh();
  raw.send(Channel::kData, "short", 5);
  EXPECT_EQ(allocate_shm(raw)->code(), ErrorCode::kCorrupt);
  raw = make_raw_mesh();
  const auto silence = allocate_shm(raw, 30ms);
  EXPECT_EQ(silence->code(), ErrorCode::kTimeout);
  EXPECT_THAT(silence->what(),
              testing::AllOf(Says("memory.not_allocated_in_time", "rank 0", 8192, "world"),
                             Says("memory.block_missing", "rank 1 (box)")));
  raw = make_raw_mesh();
  raw.die();
  EXPECT_EQ(allocate_shm(raw)->code(), ErrorCode::kPeerLost);
}

TEST(ShmMemory, a_peer_that_left_in_order_does_not_keep_others_until_the_deadline) {
  auto raw = make_raw_mesh();
  raw.send(Channel::kControl, "\x7f", 1);
  raw.die();
  EXPECT_EQ(allocate_shm(raw, 20s)->code(), ErrorCode::kPeerLost);
}

TEST(LoopbackMemory, a_number_that_was_not_lent_is_never_an_address) {
  auto raw = make_raw_mesh();
  offer(raw, {.value = 0xdeadbeef}, -1);
  offer(raw, {.value = 0}, -1);
  LoopbackMemory memory(*raw.mesh);
  EXPECT_THROW(memory.allocate(kBytes, Pages::kPresent, Deadline::after(5s)), Error);
}

TEST(Mapping, of_a_file_is_shared_and_of_nothing_is_empty) {
  const Fd file = make_file(kBytes, true);
  const auto one = Mapping::of_file(file, kBytes, Pages::kPresent);
  const auto two = Mapping::of_file(file, kBytes, Pages::kPresent);
  one.data()[17] = std::byte{42};
  EXPECT_EQ(two.data()[17], std::byte{42});
  EXPECT_FALSE(Mapping::of_file(Fd(), kBytes, Pages::kPresent));
  EXPECT_EQ(errno, EBADF);
  EXPECT_THROW(Mapping::anonymous(std::size_t(1) << 60, Pages::kPresent), Error);
}

}  // namespace
}  // namespace paceline
