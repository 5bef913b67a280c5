#include "paceline/engine/transport/cipher.h"

#include <algorithm>
#include <cerrno>
#include <numeric>

#include <gtest/gtest.h>
#include <sys/socket.h>

#include "paceline/engine/core/bytes.h"

namespace paceline {
namespace {

using Bytes = std::vector<std::byte>;

Bytes numbered(std::size_t size) {
  Bytes bytes(size);
  for (std::size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>(i * 7 + i / 251);
  return bytes;
}

class CipherTest : public testing::TestWithParam<CipherKind> {
 protected:
  void SetUp() override {
    if (GetParam() > best_cipher()) GTEST_SKIP() << "this processor has no instructions for it";
    int ends[2];
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends), 0);
    here_.reset(ends[0]);
    there_.reset(ends[1]);
    const EphemeralKey one, two;
    sender_ = std::make_unique<Cipher>(GetParam(), one.session_keys(two.public_key(), true));
    receiver_ = std::make_unique<Cipher>(GetParam(), two.session_keys(one.public_key(), false));
  }

  // Sends `head` and `bytes`, and returns everything after `head`, received in parts of at most
  // `part`.
  Bytes transfer(const Bytes& head, const Bytes& bytes, std::size_t part) {
    const std::size_t total = head.size() + bytes.size();
    Bytes got;
    std::size_t sent = 0;
    while (got.size() < total) {
      if (sent < total) {
        const auto rest = std::span(head).subspan(std::min(sent, head.size()));
        const ssize_t now = sender_->send(
            here_.get(), rest, std::span(bytes).subspan(sent - std::min(sent, head.size())));
        if (now > 0) sent += static_cast<std::size_t>(now);
      }
      Bytes into(part);
      const ssize_t now = receiver_->receive(there_.get(), into);
      if (now > 0) {
        got.insert(got.end(), into.begin(), into.begin() + now);
      } else {
        EXPECT_EQ(errno, EAGAIN);
      }
    }
    return got;
  }

  // The bytes that are sent for `text`.
  Bytes sealed(std::string_view text) {
    EXPECT_EQ(sender_->send(here_.get(), as_bytes(text), {}), static_cast<ssize_t>(text.size()));
    Bytes bytes(4096);
    bytes.resize(static_cast<std::size_t>(::recv(there_.get(), bytes.data(), bytes.size(), 0)));
    return bytes;
  }
  void put(const Bytes& bytes) { ::send(here_.get(), bytes.data(), bytes.size(), 0); }
  // The result of receive(), and errno.
  std::pair<ssize_t, int> take() {
    Bytes into(4096);
    errno = 0;
    const ssize_t got = receiver_->receive(there_.get(), into);
    return {got, errno};
  }

  Fd here_, there_;
  std::unique_ptr<Cipher> sender_, receiver_;
};

TEST_P(CipherTest, messages_of_any_size_arrive_whole_in_parts_of_any_size) {
  constexpr std::size_t kRecord = Cipher::kRecordBytes;
  for (const std::size_t size : {std::size_t(0), std::size_t(1), std::size_t(1000), kRecord - 1,
                                 kRecord, kRecord + 1, 4 * kRecord, std::size_t(3'000'001)}) {
    for (const std::size_t part : {std::size_t(1000), kRecord, std::size_t(1) << 20}) {
      const Bytes head = numbered(48), bytes = numbered(size);
      Bytes expected = head;
      expected.insert(expected.end(), bytes.begin(), bytes.end());
      ASSERT_TRUE(transfer(head, bytes, part) == expected) << size << " in parts of " << part;
    }
  }
}

TEST_P(CipherTest, peeking_leaves_the_bytes) {
  put(sealed("four and more"));
  for (int i = 0; i < 3; ++i) {
    Bytes four(4);
    EXPECT_EQ(receiver_->peek(there_.get(), four), 4);
    EXPECT_EQ(to_string(std::span<const std::byte>(four)), "four");
  }
  Bytes all(100);
  EXPECT_EQ(receiver_->receive(there_.get(), all), 13);
}

TEST_P(CipherTest, what_travels_shows_nothing_of_what_is_said) {
  const std::string canary = "a canary that sings in the clear";
  const auto bytes = sealed(canary);
  const auto found = std::search(bytes.begin(), bytes.end(), as_bytes(canary).begin(),
                                 as_bytes(canary).begin() + 8);
  EXPECT_EQ(found, bytes.end());
  EXPECT_FALSE(sealed(canary) == bytes) << "the same words never look alike";
}

TEST_P(CipherTest, every_flipped_bit_is_noticed) {
  const std::size_t size = sealed("words").size();
  for (std::size_t i = 0; i < size; ++i) {
    for (const int bit : {0, 7}) {
      SetUp();
      auto bytes = sealed("words");
      bytes[i] ^= static_cast<std::byte>(1 << bit);
      put(bytes);
      ::shutdown(here_.get(), SHUT_WR);
      const auto [got, error] = take();
      // A length that is too long, but allowed, makes the reader wait for bytes that do not arrive.
      const bool is_refused = got == -1 && error == EBADMSG;
      EXPECT_TRUE(is_refused || (i < Cipher::kLengthBytes && got == 0)) << i << ": " << got;
    }
  }
}

TEST_P(CipherTest, records_that_are_repeated_left_out_or_swapped_are_noticed) {
  const auto one = sealed("one"), two = sealed("two"), three = sealed("three");
  put(one);
  EXPECT_EQ(take().first, 3);
  put(one);
  EXPECT_EQ(take(), std::pair(ssize_t(-1), EBADMSG));
  SetUp();
  const auto first = sealed("first"), second = sealed("second");
  put(second);
  EXPECT_EQ(take(), std::pair(ssize_t(-1), EBADMSG));
}

// A caller that gives up a message and sends a shorter one must not learn that more bytes were sent
// than the shorter one has.
TEST_P(CipherTest, fewer_bytes_than_were_begun_are_refused) {
  const Bytes large = numbered(3 * Cipher::kRecordBytes);
  while (sender_->send(here_.get(), large, {}) > 0) continue;
  ASSERT_EQ(errno, EAGAIN);
  Bytes into(1 << 20);
  while (::recv(there_.get(), into.data(), into.size(), MSG_DONTWAIT) > 0) continue;
  EXPECT_EQ(sender_->send(here_.get(), as_bytes("x"), {}), -1);
  EXPECT_EQ(errno, EINVAL);
  EXPECT_EQ(sender_->send(here_.get(), large, {}), static_cast<ssize_t>(large.size()));
}

TEST_P(CipherTest, a_record_that_ends_early_is_the_end_of_the_connection) {
  const auto bytes = sealed("words");
  put(Bytes(bytes.begin(), bytes.end() - 1));
  EXPECT_EQ(take(), std::pair(ssize_t(-1), EAGAIN));
  ::shutdown(here_.get(), SHUT_WR);
  EXPECT_EQ(take().first, 0);
}

INSTANTIATE_TEST_SUITE_P(Kinds, CipherTest,
                         testing::Values(CipherKind::kChaCha20Poly1305, CipherKind::kAes256Gcm),
                         [](const auto& info) {
                           return std::string(info.param == CipherKind::kAes256Gcm ? "aes"
                                                                                   : "chacha");
                         });

TEST(EphemeralKey, both_ends_derive_the_same_keys_that_no_other_has) {
  const EphemeralKey client, server, other;
  const auto mine = client.session_keys(server.public_key(), true);
  const auto theirs = server.session_keys(client.public_key(), false);
  EXPECT_TRUE(mine.send == theirs.receive && mine.receive == theirs.send);
  EXPECT_FALSE(mine.send == mine.receive);
  EXPECT_FALSE(other.session_keys(server.public_key(), true).send == mine.send);
  EXPECT_THROW(client.session_keys({}, true), Error);  // a point of small order
}

}  // namespace
}  // namespace paceline
