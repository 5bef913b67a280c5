// Rank 0 hosts the store through which groups form, and ends in every order with the other ranks.
// It keeps the store while a group forms and no longer; groups without rank 0 can form as well.

#include <chrono>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "paceline/engine/collectives/group/init_process_group.h"
#include "paceline/engine/collectives/group/process_group.h"
#include "paceline/engine/core/system/socket.h"

#include "tests/harness/end_of.h"
#include "tests/harness/fresh_directory.h"
#include "tests/harness/shared_counter.h"

namespace paceline {
namespace {

using namespace std::chrono_literals;
using Group = std::shared_ptr<ProcessGroup>;
using harness::SharedCounter;
using Clock = std::chrono::steady_clock;

// Rank 0 once waited 5 s and more for ranks that were busy with other work.
constexpr auto kAtOnce = 4s;

// Shared by the ranks of one row.
struct Shared {
  SharedCounter rank_zero_ended, arrived;
  void wait_for_rank_zero() const { rank_zero_ended.wait_for(1, Deadline::after(60s)); }
};

struct Row {
  const char* name;
  int world;
  // The part of each rank; its group is released at the end.
  std::function<void(Group world, Shared&)> body;
  int killed = -1;  // the rank that kills itself; -1: none
};

// The other ranks continue until rank 0's process has ended, and then use the group.
void outlive_rank_zero(const Group& group, Shared& shared) {
  shared.wait_for_rank_zero();
  group->barrier();
}

const std::vector<Row>& rows() {
  static const std::vector<Row> rows = {
      {"alone", 1, [](const Group& world, Shared&) { world->barrier(); }},
      {"all_at_once_2", 2, [](const Group& world, Shared&) { world->barrier(); }},
      {"all_at_once_4", 4, [](const Group& world, Shared&) { world->barrier(); }},
      {"first_of_2", 2,
       [](const Group& world, Shared& shared) {
         if (world->rank() != 0) shared.wait_for_rank_zero();
       }},
      {"first_of_4", 4,
       [](const Group& world, Shared& shared) {
         if (world->rank() != 0) shared.wait_for_rank_zero();
       }},
      {"last", 4,
       [](Group world, Shared& shared) {
         const int rank = world->rank();
         if (rank == 0) shared.arrived.wait_for(3, Deadline::after(60s));
         world.reset();
         if (rank != 0) shared.arrived.add();
       }},
      {"halves_are_kept", 4,
       [](Group world, Shared& shared) {
         const Group half = world->split(world->rank() / 2, world->rank());
         const int rank = world->rank();
         world.reset();
         half->barrier();
         if (rank == 1) shared.wait_for_rank_zero();
         if (rank >= 2) outlive_rank_zero(half, shared);
       }},
      {"while_the_others_form_a_group", 4,
       [](const Group& world, Shared& shared) {
         const Group others = world->new_group({1, 2, 3});
         if (others->is_member()) outlive_rank_zero(others, shared);
       }},
      {"a_group_makes_groups_later", 4,
       [](Group world, Shared& shared) {
         const Group others = world->new_group({1, 2, 3});
         world.reset();
         if (!others->is_member()) return;
         outlive_rank_zero(others, shared);
         const Group pair = others->split(others->rank() / 2, others->rank());
         pair->barrier();
         const Group same = others->new_group({2, 1, 0});
         same->barrier();
         pair->new_group({0})->is_member();
         same->split(0, 0)->barrier();
       }},
      {"the_first_of_the_others_ends_first_too", 4,
       [](Group world, Shared& shared) {
         Group others = world->new_group({1, 2, 3});
         world.reset();
         if (!others->is_member()) return;
         shared.wait_for_rank_zero();
         const Group last = others->new_group({1, 2});
         others.reset();
         if (!last->is_member()) return;
         last->barrier();
         last->split(last->rank(), 0)->barrier();
         last->split(0, 0)->barrier();
       }},
      {"a_group_of_the_world_cannot_form", 3,
       [](const Group& world, Shared& shared) {
         if (world->rank() == 0) return;
         shared.wait_for_rank_zero();
         try {
           world->new_group({1, 2});
           ADD_FAILURE();
         } catch (const Error& error) {
           EXPECT_EQ(error.code(), ErrorCode::kPeerLost);
           EXPECT_THAT(error.what(), testing::AllOf(testing::HasSubstr("rank 0"),
                                                    testing::HasSubstr("new_group #")));
         }
       }},
      {"a_rank_is_killed", 3,
       [](const Group& world, Shared& shared) {
         if (world->rank() == 2) ::kill(::getpid(), SIGKILL);
         if (world->rank() == 1) shared.wait_for_rank_zero();
       },
       2},
      {"a_rank_calls__exit", 3,
       [](const Group& world, Shared& shared) {
         if (world->rank() == 2) ::_exit(0);
         if (world->rank() == 1) shared.wait_for_rank_zero();
       }},
      {"rank_zero_calls__exit", 3,
       [](Group world, Shared& shared) {
         const int rank = world->rank();
         const Group others = world->new_group({1, 2});
         // A killed process cannot keep a store open, so the other groups must have formed before.
         world->barrier();
         if (others->is_member()) others->barrier();
         if (rank != 0) shared.arrived.add();
         if (rank == 0) {
           shared.arrived.wait_for(2, Deadline::after(60s));
           shared.rank_zero_ended.add();
           ::_exit(0);
         }
         outlive_rank_zero(others, shared);
         others->split(0, 0)->barrier();
       }},
  };
  return rows;
}

class StoreHost : public ::testing::TestWithParam<std::size_t> {
 protected:
  pid_t start(const Row& row, int rank) {
    std::fflush(nullptr);
    const pid_t pid = ::fork();
    if (pid != 0) return pid;
    ::setenv("XDG_RUNTIME_DIR", directory_.path().c_str(), 1);
    ::unsetenv("PACELINE_JOB_SOCKET");
    try {
      auto group = init_process_group({.rendezvous = {.init_method = "tcp://127.0.0.1:" + port_,
                                                      .rank = rank,
                                                      .world_size = row.world,
                                                      .timeout = 60s},
                                       .group = {.timeout = 60s}});
      const auto begin = Clock::now();
      row.body(std::move(group), shared_);
      if (rank == 0) {
        shared_.rank_zero_ended.add();
        EXPECT_LT(Clock::now() - begin, kAtOnce);
      }
    } catch (const std::exception& error) {
      std::fprintf(stderr, "rank %d: %s\n", rank, error.what());
      ::_exit(7);
    }
    ::_exit(::testing::Test::HasFailure() ? 8 : 0);
  }

  FreshDirectory directory_;
  std::string port_ = std::to_string(local_port(listen_tcp({"127.0.0.1", 0})));
  Shared shared_;
};

INSTANTIATE_TEST_SUITE_P(All, StoreHost, ::testing::Range(std::size_t{0}, rows().size()),
                         [](const auto& info) { return std::string(rows()[info.param].name); });

TEST_P(StoreHost, ends_at_once_and_the_others_go_on) {
  const Row& row = rows()[GetParam()];
  std::vector<pid_t> pids;
  for (int rank = 0; rank < row.world; ++rank) pids.push_back(start(row, rank));
  for (int rank = 0; rank < row.world; ++rank) {
    EXPECT_EQ(harness::end_of(pids[static_cast<std::size_t>(rank)]),
              rank == row.killed ? "signal Killed" : "exit code 0")
        << "rank " << rank;
  }
}

}  // namespace
}  // namespace paceline
