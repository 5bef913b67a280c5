// Tests which processes may join a mesh.

#include "paceline/engine/transport/formation/connect.h"

#include <algorithm>
#include <future>
#include <thread>

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include "paceline/engine/core/authentication.h"
#include "paceline/engine/core/bytes.h"
#include "paceline/engine/core/system/socket.h"
#include "paceline/engine/transport/control_messages.h"
#include "paceline/engine/transport/formation/peers.h"
#include "paceline/engine/transport/socket_wire.h"

#include "tests/engine/transport/connect_fixture.h"
#include "tests/harness/expect_error.h"
#include "tests/harness/says.h"
#include "tests/harness/server_handshake.h"
#include "tests/harness/wait_until.h"

namespace paceline {
namespace {

using harness::Says;

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

TEST_P(ConnectTest, strangers_at_the_door_do_not_hold_the_group_up) {
  for (const char* rank : {"1", "2"}) store_.set(rank, address_of_a_dead_rank().encode());
  auto first = join(0, 3);
  std::vector<Fd> strangers;
  for (int i = 0; i < 40; ++i) {
    for (Fd& socket : knock()) strangers.push_back(std::move(socket));  // silent clients
  }
  for (const std::string& text :
       {std::string("GET / HTTP/1.1\r\nHost: x\r\n\r\n"), std::string(4000, '\xff'),
        std::string("PLINE\0\0\x09", 8), std::string("PLINE\0\0\x03half a nonce", 20)}) {
    for (Fd& socket : knock()) {
      (void)!::send(socket.get(), text.data(), text.size(), MSG_NOSIGNAL);
      strangers.push_back(std::move(socket));
    }
  }
  const auto begin = Clock::now();
  auto second = join(1, 3);
  while (address_of(1).host_name == "box") std::this_thread::yield();
  auto third = join(2, 3);
  for (auto* mesh : {&first, &second, &third}) mesh->get()->throw_if_failed();
  // Waiting for the silent clients one by one would take two minutes.
  EXPECT_LT(Clock::now() - begin, 8s);
}

TEST_P(ConnectTest, another_secret_or_generation_is_refused_and_the_group_forms_without_it) {
  store_.set("1", address_of_a_dead_rank().encode());  // so that rank 0 starts to listen
  auto first = join(0, 2);
  for (Fd& socket : knock()) {
    const Secret other = Secret::generate();
    EXPECT_THROW(
        authenticate_as_client(socket, other, "mesh world generation 3 of 2", Deadline::after(5s)),
        Error);
  }
  auto older = options(1, 2, 2);
  older.publish = [](const std::string&) {};
  older.fetch = [this](const auto& ranks, auto wait) {
    return std::vector(ranks.size(), store_.get("0", wait));
  };
  try {
    connect_mesh(older, secret_);
    FAIL() << "a member of generation 2 was let into generation 3";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalid);
    EXPECT_EQ(error.ranks(), std::vector{0}) << error.what();
    EXPECT_THAT(error.what(), Says("nodes.secret_differs"));
  }
  auto second = join(1, 2);
  const auto one = first.get();
  const auto two = second.get();
  EXPECT_TRUE(one->throw_if_failed().empty());
  EXPECT_TRUE(two->throw_if_failed().empty());
}

// Rank 0 has a later version of this protocol.
TEST_P(ConnectTest, a_peer_of_another_version_is_named_with_both_versions) {
  auto address = address_of_a_dead_rank();
  const Fd local = listen_unix(address.unix_name);
  const Fd tcp = listen_tcp({"127.0.0.1", 0});
  address.tcp.port = local_port(tcp);
  store_.set("0", address.encode());
  auto second = join(1, 2);
  const Fd caller =
      accept_connection(GetParam() == TransportKind::kTcp ? tcp : local, Deadline::after(10s));
  ASSERT_TRUE(caller);
  std::string hello("PLINE\0\0\x04", 8);
  hello.resize(72, 'x');
  ASSERT_EQ(::send(caller.get(), hello.data(), hello.size(), MSG_NOSIGNAL), 72);
  try {
    second.get();
    FAIL() << "a version that is not this one's was spoken with";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalid);
    EXPECT_THAT(error.what(), Says("handshake.other_version", "rank 0 (box)", 4, 3));
  }
}

// A rank that is connecting to a rank that gave up only sees that it no longer listens.
TEST_P(ConnectTest, why_a_rank_gave_up_reaches_those_that_were_not_connected_to_it) {
  store_.set("0", address_of_a_dead_rank().encode());
  std::string told;
  const auto text_of_failure = [&](const std::string& given_up) {
    auto second = options(1, 2);
    second.give_up = [&](const std::string& notice) { told = notice; };
    second.given_up = [&](auto) { return given_up; };
    try {
      connect_mesh(second, secret_);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kPeerLost);
      return std::string(error.what());
    }
    return std::string("nothing failed");
  };
  EXPECT_THAT(text_of_failure(""), Says("forming.unreachable", "rank 1", "rank 0 (box)", "world"));
  const auto notice = decode_notice(told);
  ASSERT_TRUE(notice);
  EXPECT_EQ(notice->code, ErrorCode::kPeerLost);
  EXPECT_EQ(notice->ranks, std::vector{0});
  EXPECT_THAT(notice->text, Says("forming.unreachable", "rank 1", "rank 0 (box)"));

  const Error cause(ErrorCode::kPeerLost, "rank 0: rank 7 (box) died");
  EXPECT_THAT(text_of_failure(encode_notice(cause)),
              Says("forming.gave_up", "rank 1", "world", cause.what()));
}

// Rank 1 fails before it connects to rank 0, which waits for it, and before it publishes its
// address, for which rank 2 waits.
TEST_P(ConnectTest, why_a_rank_gave_up_reaches_those_that_wait_for_it) {
  for (const bool it_published : {true, false}) {
    const std::string notice = it_published ? "gave up 1" : "gave up 2";
    const auto with_notices = [&](int rank) {
      auto mine = options(rank, 3);
      mine.timeout = 60s;
      mine.give_up = [&](const std::string& text) { store_.compare_set(notice, "", text); };
      mine.given_up = [&](std::chrono::milliseconds wait) {
        try {
          return store_.get(notice, wait);
        } catch (const Error&) {
          return std::string();
        }
      };
      return mine;
    };
    for (const char* rank : {"0", "1", "2"}) store_.delete_key(rank);
    const auto begin = Clock::now();
    // A rank that is fully connected learns of the failure through its connections.
    const auto join_until_failure = [&](int rank) {
      const auto mesh = connect_mesh(with_notices(rank), secret_);
      const auto never = [&] {
        mesh->throw_if_failed();
        return false;
      };
      (void)harness::wait_until(never, Deadline::after(20s), 1ms);
    };
    auto first = std::async(std::launch::async, [&] { join_until_failure(0); });
    auto second = std::async(std::launch::async, [&] {
      auto mine = with_notices(1);
      if (it_published) {
        mine.fetch = [this](const auto& ranks, auto wait) {
          auto addresses = harness::fetch_from(store_, ranks, wait);
          const auto first = std::find(ranks.begin(), ranks.end(), 0);
          if (first != ranks.end()) {
            addresses[static_cast<std::size_t>(first - ranks.begin())] =
                address_of_a_dead_rank().encode();
          }
          return addresses;
        };
      } else {
        mine.publish = [](const std::string&) { throw Error(ErrorCode::kSystem, "no socket"); };
      }
      connect_mesh(mine, secret_);
    });
    auto third = std::async(std::launch::async, [&] { join_until_failure(2); });
    EXPECT_THROW(second.get(), Error);
    for (auto* rank : {&first, &third}) {
      try {
        rank->get();
        ADD_FAILURE() << "it has noticed nothing";
      } catch (const Error& error) {
        if (it_published) {
          EXPECT_THAT(error.what(), Says("forming.unreachable", "rank 1", "rank 0 (box)"));
        } else {
          EXPECT_THAT(error.what(), testing::HasSubstr("no socket"));
        }
      }
    }
    EXPECT_LT(Clock::now() - begin, 30s);
  }
}

TEST_P(ConnectTest, a_caller_that_speaks_slowly_is_sent_away_while_the_group_waits) {
  store_.set("1", address_of_a_dead_rank().encode());  // so that rank 0 starts to listen
  auto first = join(0, 2);
  for (Fd& socket : knock()) {
    const char hello[] = "PLINE\0\0\x03 and then half a nonce, byte by byte";
    const auto deadline = Deadline::after(30s);
    std::size_t sent = 0;
    char byte = 0;
    ssize_t got = -1;
    while ((got = ::recv(socket.get(), &byte, 1, MSG_DONTWAIT)) < 0 && errno == EAGAIN) {
      ASSERT_FALSE(deadline.expired()) << "it is still connected";
      if (sent < 30) (void)!::send(socket.get(), &hello[sent++], 1, MSG_NOSIGNAL);
      wait_ready(socket.get(), POLLIN, Deadline::after(100ms));  // about ten bytes a second
    }
    EXPECT_LE(got, 0);
  }
  auto second = join(1, 2);
  const auto one = first.get();
  const auto two = second.get();
  EXPECT_TRUE(one->throw_if_failed().empty());
  EXPECT_TRUE(two->throw_if_failed().empty());
}

class TcpConnectTest : public ConnectTest {};

// The callee turns the first two calls away, like a rank with more callers than it can serve.
// Callers over shared memory connect in the same way.
TEST_P(TcpConnectTest, a_rank_that_is_turned_away_in_the_handshake_calls_again) {
  auto address = address_of_a_dead_rank();
  const Fd tcp = listen_tcp({"127.0.0.1", 0});
  address.tcp.port = local_port(tcp);
  store_.set("0", address.encode());
  auto second = join(1, 2);
  std::vector<Fd> channels;
  for (int call = 0; call < 2 + kNumChannels; ++call) {
    Fd caller = accept_connection(tcp, Deadline::after(10s));
    ASSERT_TRUE(caller) << call;
    if (call < 2) continue;
    harness::authenticate_as_server(caller, secret_.derive("mesh"), "mesh world generation 3 of 2",
                                    Deadline::after(10s));
    channels.push_back(std::move(caller));
  }
  EXPECT_TRUE(second.get()->throw_if_failed().empty());
}

TEST_P(ConnectTest, a_second_rank_of_the_same_number_is_refused) {
  auto first = join(0, 2);
  auto second = join(1, 2);
  const auto one = first.get();
  const auto two = second.get();
  auto late = options(1, 2);
  late.publish = [](const std::string&) {};
  // No rank listens any more. Over TCP a refused connection may be temporary, so the call ends by
  // its timeout.
  late.timeout = 1s;
  EXPECT_THROW(connect_mesh(late, secret_), Error);
  EXPECT_TRUE(one->throw_if_failed().empty());
  EXPECT_TRUE(two->throw_if_failed().empty());
}

TEST_P(ConnectTest, a_missing_rank_is_named) {
  auto alone = options(0, 3);
  alone.timeout = 200ms;
  alone.fetch = [this](const auto& ranks, auto wait) {
    return std::vector(ranks.size(), store_.get("0", wait));
  };
  try {
    connect_mesh(alone, secret_);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kTimeout);
    EXPECT_EQ(error.ranks(), (std::vector{1, 2})) << error.what();
    EXPECT_EQ(error.deadline(), alone.timeout) << error.what();
  }
}

// The ranks are already connected in another group, the parent.
TEST_P(ConnectTest, a_failure_of_the_parent_ends_the_forming_soon_and_is_told) {
  const auto begin = Deadline::Clock::now();
  auto alone = options(0, 2);
  std::string told;
  alone.give_up = [&](const std::string& notice) { told = notice; };
  alone.look_after_parent = [&]() -> std::vector<int> {
    if (Deadline::Clock::now() - begin < 200ms) return {};
    throw Error(ErrorCode::kPeerLost, "rank 0: rank 1 is gone");
  };
  try {
    connect_mesh(alone, secret_);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kPeerLost);
    EXPECT_STREQ(error.what(), "rank 0: rank 1 is gone");
  }
  EXPECT_LT(Deadline::Clock::now() - begin, 2s);
  EXPECT_NE(told.find("rank 0: rank 1 is gone"), std::string::npos);
}

TEST_P(ConnectTest, a_member_that_has_left_the_parent_is_lost_unless_it_came_before) {
  auto alone = options(0, 3);
  alone.members = {4, 7, 5};
  alone.look_after_parent = [] { return std::vector<int>{1}; };
  try {
    connect_mesh(alone, secret_);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kPeerLost);
    EXPECT_EQ(error.ranks(), std::vector{7}) << error.what();
  }
}

TEST_P(TcpConnectTest, after_ten_seconds_a_warning_names_the_missing_rank) {
  auto alone = options(1, 2);
  alone.members = {4, 7};
  alone.timeout = 10'500ms;
  testing::internal::CaptureStderr();
  EXPECT_THROW(connect_mesh(alone, secret_), Error);
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              Says("forming.slow", "world", 10, "rank 0 (rank 4 of the world)"));
}

TEST_P(ConnectTest, others_may_leave_the_parent_once_they_have_arrived) {
  for (int round = 0; round < 20; ++round) {
    std::vector<std::future<std::unique_ptr<Mesh>>> ranks;
    for (int rank = 0; rank < 3; ++rank) {
      auto mine = options(rank, 3, round);
      mine.look_after_parent = [] { return std::vector<int>{0, 1, 2}; };
      ranks.push_back(
          std::async(std::launch::async, [this, mine] { return connect_mesh(mine, secret_); }));
    }
    std::vector<std::unique_ptr<Mesh>> meshes;
    for (auto& rank : ranks) meshes.push_back(rank.get());
    for (int rank = 0; rank < 3; ++rank) store_.delete_key(std::to_string(rank));
  }
}

TEST_P(ConnectTest, a_rank_that_died_after_it_published_its_address_is_named_before_the_deadline) {
  auto lowest = address_of_a_dead_rank();
  store_.set("0", lowest.encode());
  auto second = join(1, 3);
  auto third = join(2, 3);
  for (auto* rank : {&second, &third}) {
    try {
      rank->get();
      FAIL();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kPeerLost);
      EXPECT_EQ(error.ranks(), std::vector{0}) << error.what();
    }
  }
}

// A peer that has formed the group tells this rank why another group of the same ranks has failed.
TEST(FormationWatch, questions_and_reasons_end_no_forming_and_a_notice_behind_them_does) {
  ConnectOptions options;
  options.world_size = 2;
  int ends[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends), 0);
  const Fd peer(ends[1]);
  SocketWire wire(2);
  wire.connect(1, Channel::kControl, Fd(ends[0]), nullptr);
  FormationWatch watch(options, [](int) { return "rank 1 (box)"; });
  const auto send = [&](const std::string& bytes) {
    send_all(peer, as_bytes(bytes), Deadline::after(10s));
  };
  const std::string reason = Inquiry::encode_reason(std::string(2000, 'x'));
  send(reason.substr(0, 2));
  EXPECT_NO_THROW(watch.require_connected(wire, 1));
  send(reason.substr(2) + Inquiry::encode_question());
  EXPECT_NO_THROW(watch.require_connected(wire, 1));
  send(encode_notice(Error(ErrorCode::kSystem, "rank 1: no memory")));
  expect_error(ErrorCode::kAborted, {"rank 1 (box) gave up", "rank 1: no memory"},
               [&] { watch.require_connected(wire, 1); });
}

INSTANTIATE_TEST_SUITE_P(Transports, TcpConnectTest, testing::Values(TransportKind::kTcp),
                         [](const auto&) { return std::string("tcp"); });
INSTANTIATE_TEST_SUITE_P(Transports, ConnectTest,
                         testing::Values(TransportKind::kShm, TransportKind::kTcp),
                         name_of_transport);

}  // namespace
}  // namespace paceline
