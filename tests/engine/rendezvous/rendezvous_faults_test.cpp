#include <array>
#include <csignal>
#include <new>
#include <optional>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "paceline/engine/core/option_text.h"
#include "paceline/engine/rendezvous/arrival.h"
#include "paceline/engine/rendezvous/meeting_point.h"
#include "paceline/engine/store/memory_store.h"

#include "tests/engine/rendezvous/rank_threads.h"
#include "tests/harness/end_of.h"
#include "tests/harness/expect_error.h"
#include "tests/harness/fresh_directory.h"
#include "tests/harness/says.h"

namespace paceline {
namespace {

using harness::Says;

using namespace std::chrono_literals;

class RendezvousFaults : public testing::Test {
 protected:
  Variables environment(int rank, int world_size) const {
    return {{"RANK", std::to_string(rank)},
            {"WORLD_SIZE", std::to_string(world_size)},
            {"MASTER_ADDR", "127.0.0.1"},
            {"MASTER_PORT", port_},
            {"XDG_RUNTIME_DIR", directory_.path()}};
  }
  Rendezvous join_as(int rank, int world_size, std::chrono::milliseconds timeout) const {
    return rendezvous({.timeout = timeout}, variables_of(environment(rank, world_size)));
  }

  FreshDirectory directory_;
  std::string port_ = std::to_string(local_port(listen_tcp({"127.0.0.1", 0})));
};

TEST_F(RendezvousFaults, missing_ranks_are_named_on_every_rank) {
  auto ranks = start_ranks({0, 2}, [&](int rank) { join_as(rank, 7, 400ms); });
  for (auto& rank : ranks) {
    expect_error(ErrorCode::kTimeout, {"of 7", "ranks 1, 3-6", "400 ms"}, [&] { rank.get(); });
  }
}

TEST_F(RendezvousFaults, a_missing_rank_zero_is_named) {
  expect_error(ErrorCode::kTimeout, {"rank 0", "100 ms"}, [&] { join_as(1, 2, 100ms); });
}

TEST_F(RendezvousFaults, two_processes_with_one_rank_are_both_told) {
  auto ranks = start_ranks({0, 1, 1}, [&](int rank) { join_as(rank, 3, 20s); });
  for (auto& rank : ranks) {
    expect_error(ErrorCode::kInvalid,
                 {"rank 1 is claimed twice", std::to_string(::getpid()), "host", "another name"},
                 [&] { rank.get(); });
  }
}

// The other rank arrives before or after the odd one.
TEST_F(RendezvousFaults, a_rank_that_cannot_take_part_tells_the_others_why) {
  for (const int odd : {0, 1}) {
    auto others = start_ranks({1 - odd}, [&](int rank) { join_as(rank, 2, 20s); });
    decline_rendezvous({ErrorCode::kInvalid, "rank " + std::to_string(odd) + ": a bad option"}, {},
                       variables_of(environment(odd, 2)));
    expect_error(ErrorCode::kInvalid, {"rank " + std::to_string(odd) + ": a bad option"},
                 [&] { others.front().get(); });
  }
}

TEST_F(RendezvousFaults, a_rank_that_cannot_even_tell_why_keeps_its_reason) {
  EXPECT_NO_THROW(decline_rendezvous(
      {ErrorCode::kInvalid, "rank 0: a bad option"}, {},
      [](const std::string&) -> std::optional<std::string> { throw std::bad_alloc(); }));
}

TEST_F(RendezvousFaults, a_rank_that_has_met_already_is_told_at_once_and_may_again_once_it_left) {
  for (int round = 0; round < 2; ++round) {
    std::array<std::optional<Rendezvous>, 2> met;
    join(start_ranks(
        {0, 1}, [&](int rank) { met[static_cast<std::size_t>(rank)] = join_as(rank, 2, 20s); }));
    for (const int rank : {0, 1}) {
      expect_error(ErrorCode::kInvalid,
                   {"rank " + std::to_string(rank) + ": this process already belongs to group"},
                   [&] { join_as(rank, 2, 20s); });
    }
    join(start_ranks({0, 1}, [&](int rank) { met[static_cast<std::size_t>(rank)].reset(); }));
  }
}

TEST_F(RendezvousFaults, a_second_rank_zero_is_told_what_has_the_port) {
  const Fd other_job = listen_tcp({"127.0.0.1", static_cast<std::uint16_t>(std::stoi(port_))});
  expect_error(ErrorCode::kSystem, {"rank 0", "127.0.0.1:" + port_, "second process"},
               [&] { join_as(0, 2, 20s); });
}

TEST_F(RendezvousFaults, different_world_sizes_are_told_to_both) {
  auto ranks = start_ranks({0, 1}, [&](int rank) { join_as(rank, rank + 2, 20s); });
  for (auto& rank : ranks) {
    expect_error(ErrorCode::kInvalid, {"world size", "same WORLD_SIZE"}, [&] { rank.get(); });
  }
}

TEST_F(RendezvousFaults, a_notice_of_a_dead_job_is_not_believed) {
  Bulletin bulletin(variables_of({{"XDG_RUNTIME_DIR", directory_.path()}}),
                    "tcp-127.0.0.1:" + port_);
  bulletin.publish({"127.0.0.1", static_cast<std::uint16_t>(std::stoi(port_))}, Secret::generate());
  auto rank_one = start_ranks({1}, [&](int rank) { join_as(rank, 2, 20s); });
  EXPECT_EQ(rank_one.front().wait_for(50ms), std::future_status::timeout);
  auto rank_zero = start_ranks({0}, [&](int rank) { join_as(rank, 2, 20s); });
  EXPECT_NO_THROW(join(std::move(rank_zero)));
  EXPECT_NO_THROW(join(std::move(rank_one)));
}

TEST_F(RendezvousFaults, another_secret_is_refused_at_once) {
  const auto method = "tcp://127.0.0.1:" + port_;
  const auto meet = [&](int rank, std::chrono::milliseconds timeout) {
    rendezvous({.init_method = method,
                .rank = rank,
                .world_size = 2,
                .secret = Secret::generate(),
                .timeout = timeout},
               variables_of({}));
  };
  auto rank_zero = start_ranks({0}, [&](int rank) { meet(rank, 500ms); });
  auto rank_one = start_ranks({1}, [&](int rank) { meet(rank, 20s); });
  expect_error(ErrorCode::kInvalid, {"another job secret"}, [&] { rank_one.front().get(); });
  expect_error(ErrorCode::kTimeout, {"rank 1"}, [&] { rank_zero.front().get(); });
}

TEST_F(RendezvousFaults, a_job_across_hosts_needs_a_secret_and_is_told_how_to_make_one) {
  auto variables = environment(1, 2);
  variables["MASTER_ADDR"] = "192.0.2.1";
  expect_error(ErrorCode::kInvalid, {"PACELINE_SECRET_FILE", "openssl rand -hex 32"},
               [&] { rendezvous({.timeout = 1s}, variables_of(variables)); });
}

TEST_F(RendezvousFaults, explicit_arguments_are_checked) {
  const auto none = variables_of({});
  const auto expect_invalid = [&](const RendezvousOptions& options, const std::string& word) {
    expect_error(ErrorCode::kInvalid, {word}, [&] { rendezvous(options, none); });
  };
  expect_invalid({.rank = 0}, "both rank and world_size");
  expect_invalid({.rank = 2, .world_size = 2}, "rank 2");
  expect_invalid({.rank = -1, .world_size = 2}, "rank -1");
  expect_invalid({.rank = 0, .world_size = 0}, "world_size 0");
  expect_invalid({.init_method = "tcp://127.0.0.1:1"}, "rank and world_size are needed");
  expect_invalid({.store = std::make_shared<MemoryStore>()}, "rank and world_size are needed");
}

TEST_F(RendezvousFaults, the_store_outlives_rank_zeros_interest_until_the_others_leave) {
  auto ranks = start_ranks({0, 1, 2}, [&](int rank) {
    const auto me = join_as(rank, 3, 20s);
    if (rank == 0) return;  // rank 0 releases the store at once
    if (rank == 2) me.store->get("from rank 1", 20s);
    if (rank == 1) me.store->set("from rank 1", "late");
  });
  EXPECT_NO_THROW(join(std::move(ranks)));
}

TEST_F(RendezvousFaults, a_killed_rank_zero_is_a_lost_store) {
  const pid_t rank_zero = ::fork();
  if (rank_zero == 0) {
    try {
      const auto me = join_as(0, 2, 20s);
      me.store->get("never", 20s);
    } catch (const std::exception&) {
    }
    ::_exit(1);
  }
  const auto me = join_as(1, 2, 20s);
  auto waiting = start_ranks({1}, [&](int) { me.store->get("never", 20s); });
  EXPECT_EQ(waiting.front().wait_for(20ms), std::future_status::timeout);
  ::kill(rank_zero, SIGKILL);
  ::waitpid(rank_zero, nullptr, 0);
  expect_error(ErrorCode::kPeerLost, {"127.0.0.1:" + port_}, [&] { waiting.front().get(); });
}

TEST_F(RendezvousFaults, a_forked_child_that_destroys_its_copy_leaves_the_store_alone) {
  std::array<std::optional<Rendezvous>, 2> ranks;
  join(start_ranks(
      {0, 1}, [&](int rank) { ranks[static_cast<std::size_t>(rank)] = join_as(rank, 2, 20s); }));
  const pid_t child = ::fork();
  if (child == 0) {
    for (auto& rank : ranks) rank.reset();
    ::_exit(0);
  }
  EXPECT_EQ(harness::end_of(child), "exit code 0");
  for (const int rank : {0, 1}) {
    Store& store = *ranks[static_cast<std::size_t>(rank)]->store;
    store.set_timeout(20s);
    EXPECT_EQ(store.add(fmt::format("rendezvous/0/left/{}", rank), 0), 0);
  }
  auto last = start_ranks({0, 1}, [&](int rank) { ranks[static_cast<std::size_t>(rank)].reset(); });
  EXPECT_NO_THROW(join(std::move(last)));
}

TEST(Arrival, names_the_missing_ranks_while_it_waits) {
  const auto store = std::make_shared<MemoryStore>();
  testing::internal::CaptureStderr();
  for (const int rank : {0, 1}) {  // rank 1 is late: it gets rank 0's decision
    try {
      Arrival(store, {.rank = rank, .world_size = 3}).meet(100ms, {.first = 10ms, .every = 60ms});
      ADD_FAILURE() << "nothing was thrown";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kTimeout);
      EXPECT_EQ(error.ranks(), (std::vector{1, 2})) << error.what();
    }
  }
  EXPECT_THAT(testing::internal::GetCapturedStderr(), Says("rendezvous.waits", 0, 3, "1, 2"));
}

TEST(Arrival, describes_ranks_shortly) {
  EXPECT_EQ(format_ranks({}), "");
  EXPECT_EQ(format_ranks({3}), "3");
  EXPECT_EQ(format_ranks({0, 1, 2, 5, 6, 9}), "0-2, 5, 6, 9");
}

}  // namespace
}  // namespace paceline
