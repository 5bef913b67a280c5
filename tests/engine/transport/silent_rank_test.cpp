// Ranks that do not answer, or never arrive, and what the other ranks do while a group forms.

#include <chrono>
#include <future>

#include <gtest/gtest.h>

#include "paceline/engine/core/authentication.h"
#include "paceline/engine/core/error.h"
#include "paceline/engine/core/system/socket.h"

#include "tests/engine/transport/connect_fixture.h"
#include "tests/harness/says.h"
#include "tests/harness/server_handshake.h"

namespace paceline {
namespace {

using harness::Says;

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

// Like a stopped process: its kernel accepts connections, but no answer is sent.
class SilentRankTest : public ConnectTest {
 protected:
  struct Doors {
    PeerAddress address;
    Fd local, tcp;
    const Fd& of(TransportKind transport) const {
      return transport == TransportKind::kTcp ? tcp : local;
    }
  };
  Doors publish(int rank) {
    Doors doors{address_of_a_dead_rank(), {}, listen_tcp({"127.0.0.1", 0})};
    doors.local = listen_unix(doors.address.unix_name);
    doors.address.tcp.port = local_port(doors.tcp);
    store_.set(std::to_string(rank), doors.address.encode());
    return doors;
  }
};

TEST_P(SilentRankTest, ranks_that_mean_other_members_are_told_so_while_a_third_is_missing) {
  auto mine = options(0, 3), others = options(1, 3);
  for (auto* side : {&mine, &others}) side->timeout = 60s;
  mine.members = {0, 1, 2};
  others.members = {0, 1, 3};
  const auto begin = Clock::now();
  auto first = std::async(std::launch::async, [&] { connect_mesh(mine, secret_); });
  auto second = std::async(std::launch::async, [&] { connect_mesh(others, secret_); });
  for (auto* rank : {&first, &second}) {
    try {
      rank->get();
      ADD_FAILURE() << "it has noticed nothing";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalid);
      EXPECT_THAT(error.what(), Says("forming.members_differ"));
    }
  }
  EXPECT_LT(Clock::now() - begin, 30s);
}

TEST_P(SilentRankTest, a_rank_that_does_not_answer_is_named_at_the_deadline) {
  const Doors silent = publish(0);
  auto second = options(1, 2);
  second.timeout = 300ms;
  try {
    connect_mesh(second, secret_);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kTimeout);
    EXPECT_EQ(error.ranks(), std::vector{0}) << error.what();
  }
}

TEST_P(SilentRankTest, a_rank_that_does_not_answer_hides_no_death) {
  const Doors silent = publish(0);
  Doors dying = publish(1);
  const auto begin = Clock::now();
  auto mine = options(2, 3);
  mine.timeout = 60s;
  auto third = std::async(std::launch::async, [&] { connect_mesh(mine, secret_); });
  Fd caller = accept_connection(dying.of(GetParam()), Deadline::after(10s));
  harness::authenticate_as_server(caller, secret_.derive("mesh"), "mesh world generation 3 of 3",
                                  Deadline::after(10s));
  for (Fd* fd : {&dying.local, &dying.tcp, &caller}) fd->reset();
  try {
    third.get();
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kPeerLost);
    EXPECT_EQ(error.ranks(), std::vector{1}) << error.what();
  }
  EXPECT_LT(Clock::now() - begin, 30s);
}

INSTANTIATE_TEST_SUITE_P(Transports, SilentRankTest,
                         testing::Values(TransportKind::kShm, TransportKind::kTcp),
                         name_of_transport);

}  // namespace
}  // namespace paceline
