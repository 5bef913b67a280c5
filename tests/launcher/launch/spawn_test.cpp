#include "paceline/launcher/spawn/spawn.h"

#include <csignal>
#include <cstdlib>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "paceline/engine/core/error.h"
#include "paceline/engine/rendezvous/rendezvous.h"

#include "tests/harness/says.h"

namespace paceline {
namespace {

using namespace std::chrono_literals;
using harness::Says;
using testing::HasSubstr;

Error failure_of(int num_ranks, const std::function<void(int)>& body, SpawnOptions options = {}) {
  try {
    spawn(num_ranks, body, options);
  } catch (const Error& error) {
    return error;
  }
  return Error(ErrorCode::kInvalid, "nothing was thrown");
}

TEST(Spawn, ranks_meet_in_the_jobs_store) {
  for (const int num_ranks : {1, 2, 3, 5}) {
    spawn(num_ranks, [num_ranks](int rank) {
      const Rendezvous meeting = rendezvous();
      if (meeting.environment.rank != rank || meeting.environment.world_size != num_ranks) {
        throw Error(ErrorCode::kInvalid, "the environment does not tell the rank");
      }
      meeting.store->add("arrived", 1);
      if (rank == 0) meeting.store->set("word", "hello");
      if (meeting.store->get("word") != "hello") throw Error(ErrorCode::kCorrupt, "another word");
    });
  }
}

TEST(Spawn, ranks_do_not_inherit_the_variables_of_an_outer_launcher) {
  for (const char* name : {"OMPI_COMM_WORLD_RANK", "PACELINE_LOGICAL_SHARDS"}) {
    setenv(name, "2", 1);
    setenv("PACELINE_OF_THE_USER", "kept", 1);
    spawn(2, [name](int) {
      if (std::getenv(name) != nullptr) throw std::runtime_error(std::string(name) + " is set");
      if (std::getenv("PACELINE_OF_THE_USER") != std::string("kept"))
        throw std::runtime_error("the user's variable is lost");
    });
    unsetenv(name);
    unsetenv("PACELINE_OF_THE_USER");
  }
}

TEST(Spawn, the_first_failure_is_thrown_with_its_message_and_code) {
  const Error error = failure_of(3, [](int rank) {
    if (rank == 1) throw Error(ErrorCode::kCorrupt, "shard 7 is broken");
    pause();
  });
  EXPECT_EQ(error.code(), ErrorCode::kCorrupt);
  EXPECT_THAT(error.what(), Says("spawn.first_failure", 1, 3, "shard 7 is broken"));
}

TEST(Spawn, other_exceptions_exits_and_signals_are_failures_too) {
  EXPECT_THAT(failure_of(2, [](int) { throw std::runtime_error("boom"); }).what(),
              HasSubstr("boom"));
  EXPECT_THAT(failure_of(2, [](int) { throw 5; }).what(), Says("error.not_an_exception", "int"));
  EXPECT_THAT(failure_of(1, [](int) { _exit(3); }).what(),
              Says("spawn.first_failure", 0, 1, "exit code 3"));
  const Error killed = failure_of(1, [](int) { raise(SIGKILL); });
  EXPECT_EQ(killed.code(), ErrorCode::kAborted);
  EXPECT_THAT(killed.what(), Says("spawn.first_failure", 0, 1, "killed by SIGKILL"));
}

TEST(Spawn, ranks_that_hang_are_killed_at_the_deadline_and_named) {
  const Error error = failure_of(3,
                                 [](int rank) {
                                   signal(SIGTERM, SIG_IGN);
                                   while (rank != 1) pause();
                                 },
                                 {.timeout = 300ms});
  EXPECT_EQ(error.code(), ErrorCode::kTimeout);
  EXPECT_THAT(error.what(), Says("spawn.late_ranks_killed", 3, "ranks 0, 2", 300));
}

TEST(Spawn, the_others_may_continue_after_a_failure) {
  const Error error = failure_of(2,
                                 [](int rank) {
                                   const Rendezvous meeting = rendezvous();
                                   if (rank == 1) raise(SIGKILL);
                                   meeting.store->set("went on", "");
                                 },
                                 {.stop_others = false});
  EXPECT_THAT(error.what(), Says("spawn.first_failure", 1, 2, "killed by SIGKILL"));
}

TEST(Spawn, a_count_below_one_is_refused) {
  EXPECT_EQ(failure_of(0, [](int) {}).code(), ErrorCode::kInvalid);
}

TEST(SpawnGroup, ranks_as_processes_and_as_threads_get_their_group) {
  for (const bool as_threads : {false, true}) {
    spawn(3,
          [](ProcessGroup& group) {
            if (all_reduce_value(group, group.rank() + 1) != 6)
              throw Error(ErrorCode::kCorrupt, "a wrong sum");
          },
          {.as_threads = as_threads});
  }
}

TEST(SpawnGroup, the_first_failure_is_thrown_and_ends_the_others) {
  for (const bool as_threads : {false, true}) {
    try {
      spawn(3,
            [](ProcessGroup& group) {
              group.barrier();
              if (group.rank() == 1) throw Error(ErrorCode::kCorrupt, "the data is bad");
              group.barrier();
            },
            {.as_threads = as_threads, .timeout = 20s});
      FAIL() << "nothing was thrown";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kCorrupt) << error.what();
      EXPECT_THAT(error.what(), HasSubstr("rank 1"));
      EXPECT_THAT(error.what(), HasSubstr("the data is bad"));
    }
  }
}

TEST(SpawnGroup, whatever_a_function_throws_is_an_error) {
  for (const bool as_threads : {false, true}) {
    try {
      spawn(2,
            [](ProcessGroup& group) {
              group.barrier();
              if (group.rank() == 1) throw 5;
              group.barrier();
            },
            {.as_threads = as_threads, .timeout = 20s});
      FAIL() << "nothing was thrown";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kAborted) << error.what();
      EXPECT_THAT(error.what(), HasSubstr("rank 1"));
      EXPECT_THAT(error.what(), Says("error.not_an_exception", "int"));
    }
  }
}

TEST(SpawnGroup, threads_need_the_group_form) {
  EXPECT_EQ(failure_of(2, [](int) {}, {.as_threads = true}).code(), ErrorCode::kInvalid);
}

}  // namespace
}  // namespace paceline
