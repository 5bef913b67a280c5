#include "paceline/engine/transport/mesh.h"

#include <array>
#include <chrono>
#include <thread>

#include <gtest/gtest.h>
#include <poll.h>

#include "paceline/engine/core/bytes.h"
#include "paceline/engine/core/system/io.h"
#include "paceline/engine/transport/cipher.h"
#include "paceline/engine/transport/control_messages.h"

#include "tests/harness/asleep.h"
#include "tests/harness/raw_mesh.h"
#include "tests/harness/says.h"

namespace paceline {
namespace {

using harness::make_raw_mesh;
using harness::Says;

std::optional<Error> failure_of(Mesh& mesh) {
  try {
    mesh.throw_if_failed();
  } catch (const Error& error) {
    return error;
  }
  return {};
}

TEST(Mesh, a_peer_that_ends_without_goodbye_is_lost) {
  auto raw = make_raw_mesh();
  EXPECT_FALSE(failure_of(*raw.mesh));
  raw.die();
  const auto error = failure_of(*raw.mesh);
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), ErrorCode::kPeerLost);
  EXPECT_STREQ(error->what(),
               "rank 0: rank 1 (box) of group world is gone: its process ended without leaving the "
               "group; see the output of rank 1");
}

TEST(Mesh, a_peer_that_says_goodbye_is_missed_only_by_ranks_that_wait_for_it) {
  auto raw = make_raw_mesh();
  const auto goodbye = encode_goodbye();
  raw.send(Channel::kControl, goodbye.data(), goodbye.size());
  raw.die();
  EXPECT_EQ(raw.mesh->throw_if_failed(), std::vector<int>{1});
  EXPECT_EQ(raw.mesh->throw_if_failed(), std::vector<int>{1});
  try {
    raw.mesh->throw_lost(1, "is gone");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kPeerLost);
    EXPECT_STREQ(
        error.what(),
        "rank 0: rank 1 (box) of group world has left the group; see the output of rank 1");
  }
}

TEST(Mesh, a_notice_counts_before_the_end_of_the_connection) {
  auto raw = make_raw_mesh();
  const auto notice = encode_notice(Error(ErrorCode::kInvalid, "rank 1: odd counts"));
  raw.send(Channel::kControl, notice.data(), notice.size());
  raw.die();
  const auto error = failure_of(*raw.mesh);
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), ErrorCode::kAborted);
  EXPECT_STREQ(error->what(),
               "rank 0: group world was aborted by rank 1 (box): rank 1: odd counts");
}

// Data use another connection than the notice, so the end of the data may arrive first.
TEST(Mesh, a_notice_that_comes_behind_the_end_of_the_data_counts) {
  auto raw = make_raw_mesh();
  Exchange exchange(*raw.mesh);
  std::vector<std::byte> data(100);
  exchange.post_receive(1, data);
  raw.other.channels[static_cast<int>(Channel::kData)].reset();
  const std::jthread late([&, waiter = gettid()] {
    harness::wait_until_asleep(waiter);
    const auto notice = encode_notice(Error(ErrorCode::kInvalid, "rank 1: odd counts"));
    raw.send(Channel::kControl, notice.data(), notice.size());
  });
  const auto error = harness::run_until_idle(exchange, std::chrono::seconds(20));
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), ErrorCode::kAborted);
  EXPECT_STREQ(error->what(),
               "rank 0: group world was aborted by rank 1 (box): rank 1: odd counts");
}

TEST(Mesh, a_notice_in_two_pieces_is_one) {
  const auto notice = encode_notice(Error(ErrorCode::kInvalid, "rank 1: odd counts"));
  for (std::size_t cut = 1; cut < notice.size(); ++cut) {
    auto raw = make_raw_mesh();
    raw.send(Channel::kControl, notice.data(), cut);
    EXPECT_FALSE(failure_of(*raw.mesh)) << cut;
    raw.send(Channel::kControl, notice.data() + cut, notice.size() - cut);
    const auto error = failure_of(*raw.mesh);
    ASSERT_TRUE(error) << cut;
    EXPECT_STREQ(error->what(),
                 "rank 0: group world was aborted by rank 1 (box): rank 1: odd counts");
  }
}

TEST(Mesh, a_peer_that_dies_in_the_middle_of_a_notice_is_lost) {
  auto raw = make_raw_mesh();
  const auto notice = encode_notice(Error(ErrorCode::kInvalid, "rank 1: odd counts"));
  raw.send(Channel::kControl, notice.data(), notice.size() - 1);
  raw.die();
  const auto error = failure_of(*raw.mesh);
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), ErrorCode::kPeerLost);
}

// Messages that a peer reads too late are neither cut nor mixed with later ones.
TEST(Mesh, words_that_were_given_up_go_before_the_next_ones) {
  using namespace std::chrono_literals;
  for (const bool is_encrypted : {false, true}) {
    SCOPED_TRACE(is_encrypted ? "encrypted" : "plain");
    const EphemeralKey one, two;
    const CipherKind kind = CipherKind::kChaCha20Poly1305;
    Cipher reader(kind, two.session_keys(one.public_key(), false));
    auto raw = make_raw_mesh(
        1, is_encrypted ? std::make_unique<Cipher>(kind, one.session_keys(two.public_key(), true))
                        : nullptr);
    const int little = 1;
    ASSERT_EQ(::setsockopt(raw.mesh->wire().socket(1, Channel::kControl), SOL_SOCKET, SO_SNDBUF,
                           &little, sizeof little),
              0);
    const std::string question = Inquiry::encode_question();
    const std::string reason = Inquiry::encode_reason(std::string(400, 'r'));
    std::string expected;
    // The question for which the peer has no room left takes a second.
    for (auto took = 0s; took < 1s; expected += question) {
      const auto begin = Deadline::Clock::now();
      raw.mesh->ask_peers();
      took = std::chrono::round<std::chrono::seconds>(Deadline::Clock::now() - begin);
    }
    raw.mesh->foretell(std::string(400, 'r'));
    expected += reason;
    std::string got;
    std::jthread peer([&] {
      const auto until = Deadline::after(20s);
      while (got.size() < expected.size() + question.size() && !until.expired()) {
        std::array<std::byte, 4096> into;
        const int socket = raw.end(Channel::kControl).get();
        const ssize_t count = receive_on(socket, is_encrypted ? &reader : nullptr, into);
        if (count > 0) {
          got += to_string(std::span<const std::byte>(into).first(static_cast<std::size_t>(count)));
        } else if (errno == EAGAIN) {
          await(socket, POLLIN, until);
        } else {
          break;
        }
      }
    });
    raw.mesh->ask_peers();
    peer.join();
    EXPECT_EQ(got, expected + question);
  }
}

TEST(Mesh, the_notice_of_a_death_keeps_its_code) {
  auto raw = make_raw_mesh();
  const auto notice = encode_notice(Error(ErrorCode::kPeerLost, "rank 1: rank 2 is gone"));
  raw.send(Channel::kControl, notice.data(), notice.size());
  EXPECT_EQ(failure_of(*raw.mesh)->code(), ErrorCode::kPeerLost);
}

TEST(Mesh, whoever_finds_a_dead_peer_tells_the_others) {
  auto raw = make_raw_mesh();
  ::shutdown(raw.end(Channel::kControl).get(), SHUT_WR);
  ASSERT_TRUE(failure_of(*raw.mesh));
  char buffer[kMaxNoticeBytes];
  const ssize_t got = ::recv(raw.end(Channel::kControl).get(), buffer, sizeof buffer, 0);
  ASSERT_GT(got, 0);
  const auto notice = decode_notice(std::span(buffer).first(static_cast<std::size_t>(got)));
  ASSERT_TRUE(notice);
  EXPECT_EQ(notice->code, ErrorCode::kPeerLost);
  EXPECT_EQ(notice->ranks, std::vector{1});
}

// Without this a peer might see this rank's end before the first notice and take it for the cause.
TEST(Mesh, a_notice_is_passed_on) {
  auto raw = make_raw_mesh();
  const auto notice = encode_notice(Error(ErrorCode::kInvalid, "rank 1: odd counts"));
  raw.send(Channel::kControl, notice.data(), notice.size());
  ASSERT_TRUE(failure_of(*raw.mesh));
  raw.mesh.reset();
  char buffer[kMaxNoticeBytes];
  const ssize_t got = ::recv(raw.end(Channel::kControl).get(), buffer, sizeof buffer, 0);
  ASSERT_GT(got, 0);
  EXPECT_EQ(std::string(buffer, static_cast<std::size_t>(got)), notice);
}

TEST(Mesh, only_the_first_cause_stays_and_is_told) {
  auto raw = make_raw_mesh();
  raw.mesh->abort(Error(ErrorCode::kTimeout, "first"));
  raw.mesh->abort(Error(ErrorCode::kInvalid, "second"));
  EXPECT_STREQ(failure_of(*raw.mesh)->what(), "first");
  raw.mesh.reset();  // a failed group sends no goodbye
  char buffer[kMaxNoticeBytes];
  const ssize_t got = ::recv(raw.end(Channel::kControl).get(), buffer, sizeof buffer, 0);
  EXPECT_EQ(got, static_cast<ssize_t>(4 + 5));
}

TEST(Mesh, bytes_that_are_not_a_notice_end_the_group_and_nothing_else) {
  for (const std::string& text :
       {std::string("GET / HTTP/1.1\r\n\r\n"), std::string("\x02\xff\xff\x00", 4),
        std::string("\x63\x01\x00x", 4), std::string(5000, '\x01')}) {
    auto raw = make_raw_mesh();
    raw.send(Channel::kControl, text.data(), text.size());
    const auto error = failure_of(*raw.mesh);
    ASSERT_TRUE(error);
    EXPECT_NE(std::string(error->what()).find("rank 1 (box)"), std::string::npos) << error->what();
  }
}

TEST(Mesh, a_rank_that_is_asked_what_it_waits_for_answers) {
  auto raw = make_raw_mesh();
  EXPECT_FALSE(raw.mesh->is_asked());
  const auto question = Inquiry::encode_question();
  raw.send(Channel::kControl, question.data(), question.size());
  raw.mesh->throw_if_failed();
  ASSERT_TRUE(raw.mesh->is_asked());
  const Awaited awaited{1, true};
  raw.mesh->answer({&awaited, 1});
  EXPECT_FALSE(raw.mesh->is_asked());
  raw.mesh->answer({});  // no peer has asked again
  char buffer[100];
  const ssize_t got = ::recv(raw.end(Channel::kControl).get(), buffer, sizeof buffer, 0);
  EXPECT_EQ(std::string(buffer, static_cast<std::size_t>(got)),
            std::string("\x7d\x01\x01\x00\x00\x80", 6));
}

TEST(Mesh, answers_are_kept_until_it_asks_again_whatever_pieces_they_arrive_in) {
  auto raw = make_raw_mesh();
  raw.mesh->ask_peers();
  EXPECT_FALSE(raw.mesh->answer_of(1));
  const Awaited awaited{0, false};
  const std::string bytes = Inquiry::encode_question() + Inquiry::encode_answer({&awaited, 1});
  for (const char byte : bytes) {
    raw.send(Channel::kControl, &byte, 1);
    raw.mesh->throw_if_failed();
  }
  EXPECT_TRUE(raw.mesh->is_asked());
  const auto answer = raw.mesh->answer_of(1);
  ASSERT_TRUE(answer);
  ASSERT_EQ(answer->size(), 1u);
  EXPECT_EQ(answer->front().rank, 0);
  EXPECT_FALSE(answer->front().has_arrived);
  raw.mesh->ask_peers();
  EXPECT_FALSE(raw.mesh->answer_of(1));
}

TEST(Mesh, a_notice_behind_questions_and_answers_counts) {
  auto raw = make_raw_mesh();
  const std::string bytes = Inquiry::encode_answer({}) + Inquiry::encode_question() +
                            encode_notice(Error(ErrorCode::kInvalid, "rank 1: odd counts"));
  raw.send(Channel::kControl, bytes.data(), bytes.size());
  EXPECT_STREQ(failure_of(*raw.mesh)->what(),
               "rank 0: group world was aborted by rank 1 (box): rank 1: odd counts");
}

TEST(Mesh, a_peer_that_leaves_after_its_reason_is_lost_with_it) {
  for (const bool in_order : {false, true}) {
    auto raw = make_raw_mesh();
    const std::string words = Inquiry::encode_reason("rank 1: odd counts in group world.0") +
                              Inquiry::encode_reason("a later one") + Inquiry::encode_question() +
                              (in_order ? encode_goodbye() : "");
    for (const char byte : words) {
      EXPECT_FALSE(failure_of(*raw.mesh));
      raw.send(Channel::kControl, &byte, 1);
    }
    raw.die();
    try {
      raw.mesh->throw_lost(1, "is gone: its process ended without leaving the group");
      FAIL();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kPeerLost);
      EXPECT_EQ(std::string(error.what()),
                std::string("rank 0: rank 1 (box) of group world ") +
                    (in_order ? "has left the group"
                              : "is gone: its process ended without leaving the group") +
                    " (rank 1: odd counts in group world.0); see the output of rank 1");
    }
  }
}

TEST(Mesh, tells_its_peers_once_why_another_group_of_the_domain_has_failed) {
  auto one = make_raw_mesh(), other = make_raw_mesh();
  const auto domain = std::make_shared<FailureDomain>();
  one.mesh->join(domain);
  other.mesh->join(domain);
  one.mesh->abort(Error(ErrorCode::kTimeout, "too late"));
  EXPECT_TRUE(failure_of(*one.mesh));
  EXPECT_FALSE(failure_of(*other.mesh));
  char buffer[100];
  const ssize_t got = ::recv(other.end(Channel::kControl).get(), buffer, sizeof buffer, 0);
  EXPECT_EQ(std::string(buffer, static_cast<std::size_t>(got)),
            Inquiry::encode_reason("another group had failed there: too late"));
  one.mesh.reset();
  // No other rank is left that needs the notice.
  other.mesh->abort(Error(ErrorCode::kInvalid, "odd"));
}

TEST(Mesh, an_answer_that_names_a_rank_that_is_none_ends_the_group) {
  auto raw = make_raw_mesh();
  const Awaited awaited{2, false};
  const auto bytes = Inquiry::encode_answer({&awaited, 1});
  raw.send(Channel::kControl, bytes.data(), bytes.size());
  EXPECT_THAT(failure_of(*raw.mesh)->what(),
              Says("mesh.notice_unreadable", "rank 0", "world", "rank 1 (box)"));
}

TEST(Notice, is_cut_at_its_limits) {
  std::vector<int> ranks(1000);
  std::iota(ranks.begin(), ranks.end(), 7);
  const auto notice =
      encode_notice(Error(ErrorCode::kSystem, std::string(5000, 'x'), {.ranks = ranks}));
  EXPECT_EQ(notice.size(), kMaxNoticeBytes);
  EXPECT_EQ(decode_notice(notice)->text, std::string(1024, 'x'));
  ranks.resize(64);
  EXPECT_EQ(decode_notice(notice)->ranks, ranks);
  for (std::size_t size = 1; size < notice.size(); ++size) {
    EXPECT_FALSE(is_whole_notice(std::span(notice).first(size))) << size;
  }
}

TEST(PeerAddress, comes_back_as_it_was_and_refuses_every_other_length) {
  PeerAddress address;
  address.host = "host";
  address.process = "process";
  address.host_name = "box";
  address.unix_name = "paceline-1";
  address.tcp.host = "127.0.0.1";
  address.tcp.port = 99;
  address.cpus = {0, 3};
  address.members = {4, 2};
  const std::string text = address.encode();
  const auto again = PeerAddress::decode(text);
  EXPECT_EQ(again.encode(), text);
  EXPECT_EQ(again.cpus, address.cpus);
  EXPECT_EQ(again.members, address.members);
  for (std::size_t length = 0; length < text.size(); ++length) {
    EXPECT_THROW(PeerAddress::decode(text.substr(0, length)), Error) << length;
  }
  EXPECT_THROW(PeerAddress::decode(text + "x"), Error);
}

}  // namespace
}  // namespace paceline
