// Ranks that die while a group forms or while it allocates memory, and ranks that leave early.

#include <array>
#include <functional>
#include <random>
#include <string_view>
#include <thread>

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>

#include "paceline/engine/transport/wire.h"

#include "tests/harness/process_ranks.h"
#include "tests/harness/random_seed.h"
#include "tests/harness/shared_counter.h"
#include "tests/harness/thread_ranks.h"
#include "tests/harness/ucx_ranks.h"
#include "tests/harness/wait_until.h"

namespace paceline {
namespace {

using harness::run_process_ranks;
using harness::run_ranks;
using harness::SharedCounter;
using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

class FormationTest : public testing::TestWithParam<TransportKind> {
  const harness::UcxTransports transports_{"tcp"};
};

TEST_P(FormationTest, a_rank_killed_at_any_moment_of_forming_is_a_typed_error_in_bounded_time) {
  if (GetParam() == TransportKind::kUcx)
    GTEST_SKIP() << "an assertion of UCX 1.13 may abort a survivor (docs/network.md)";
  std::mt19937 random(harness::random_seed());
  for (int round = 0; round < 15; ++round) {
    const int victim = round % 3;
    SharedCounter started;
    const auto begin = Clock::now();
    const auto results = run_process_ranks(
        3,
        [&](ProcessGroup& group) {
          float value = 1;
          for (int i = 0; i < 1000; ++i) group.all_reduce(std::span(&value, 1), ReduceOp::kMax);
          return std::string();
        },
        {.transport = GetParam(),
         .group_timeout = 2s,
         .before_connect = [&](int) { started.add(); }},
        [&](const std::vector<pid_t>& pids) {
          started.wait_for(3, Deadline::after(20s));
          std::this_thread::sleep_for(std::chrono::microseconds(random() % 8000));
          ::kill(pids[static_cast<std::size_t>(victim)], SIGKILL);
        });
    EXPECT_LT(Clock::now() - begin, 20s) << "round " << round;
    if (results[static_cast<std::size_t>(victim)].signal == 0) continue;  // it had already finished
    for (int rank = 0; rank < 3; ++rank) {
      if (rank == victim) continue;
      const auto& result = results[static_cast<std::size_t>(rank)];
      EXPECT_EQ(result.signal, 0) << result.report;
      if (!result.threw) continue;  // the victim was killed after its last all-reduce
      EXPECT_NE(result.report.find("rank " + std::to_string(victim)), std::string::npos)
          << "rank " << victim << " was killed, but: " << result.report;
    }
  }
}

TEST_P(FormationTest, a_rank_killed_while_symmetric_memory_is_allocated_is_named_at_once) {
  const int victim = 1;
  SharedCounter ready;
  Clock::time_point killed;
  const auto results = run_process_ranks(
      3,
      [&](ProcessGroup& group) {
        group.barrier();
        ready.add();
        if (group.rank() == victim) group.recv(std::span<float>(), 0);  // blocks
        for (int i = 0; i < 1000; ++i) {
          group.allocate_symmetric(1 << 20);
          group.barrier();
        }
        return std::string();
      },
      {.transport = GetParam()},
      [&](const std::vector<pid_t>& pids) {
        ready.wait_for(3, Deadline::after(20s));
        killed = Clock::now();
        ::kill(pids[victim], SIGKILL);
      });
  for (const std::size_t rank : {0u, 2u}) {
    ASSERT_TRUE(results[rank].threw);
    EXPECT_NE(results[rank].report.find("rank 1 ("), std::string::npos) << results[rank].report;
    EXPECT_LT(results[rank].ended - killed, 5s);
  }
}

TEST_P(FormationTest, a_rank_that_throws_between_collectives_is_named_by_the_others) {
  const auto results = run_ranks(3,
                                 [](ProcessGroup& group) {
                                   group.barrier();
                                   if (group.rank() == 1) {
                                     throw Error(ErrorCode::kCorrupt, "a bad sample");
                                   }
                                   group.barrier();
                                 },
                                 {.transport = GetParam()});
  EXPECT_EQ(results[1].error->code(), ErrorCode::kCorrupt);
  for (const std::size_t rank : {0u, 2u}) {
    ASSERT_TRUE(results[rank].error);
    EXPECT_EQ(results[rank].error->code(), ErrorCode::kPeerLost);
    EXPECT_NE(std::string(results[rank].error->what()).find("rank 1 ("), std::string::npos)
        << results[rank].error->what();
  }
}

// A rank that has left must count as having passed its last phase, even for a rank that checks only
// afterwards.
TEST_P(FormationTest, leaving_right_after_the_last_collective_is_safe) {
  for (int round = 0; round < 100; ++round) {
    harness::run_ranks_ok(3,
                          [](ProcessGroup& group) {
                            float value = 1;
                            group.all_reduce(std::span(&value, 1));
                            ASSERT_EQ(value, 3.0f);
                          },
                          {.transport = GetParam()});
  }
}

TEST_P(FormationTest, destruction_ends_operations_under_way_on_all_ranks) {
  const auto results =
      run_ranks(2,
                [](ProcessGroup& group) {
                  group.barrier();
                  std::vector<float> data(1000);
                  if (group.rank() == 1) {
                    group.all_reduce(std::span(data));
                    group.all_reduce(std::span(data));
                    return;
                  }
                  // This work is never waited for. Its memory outlives the group.
                  auto kept = std::make_shared<std::vector<float>>(1000);
                  const auto view = std::span(*kept);
                  group.all_reduce(view, ReduceOp::kSum,
                                   {.timeout = {}, .async_op = true, .keep_alive = kept});
                },
                {.transport = GetParam()});
  EXPECT_FALSE(results[0].error) << results[0].error->what();
  ASSERT_TRUE(results[1].error);
  EXPECT_TRUE(results[1].error->code() == ErrorCode::kAborted ||
              results[1].error->code() == ErrorCode::kPeerLost)
      << results[1].error->what();
}

TEST_P(FormationTest, work_outlives_its_group_and_says_why_it_ended) {
  WorkPtr orphan;
  auto kept = std::make_shared<std::vector<float>>(10);
  run_ranks(2,
            [&](ProcessGroup& group) {
              group.barrier();
              if (group.rank() == 0) {
                orphan = group.all_reduce(std::span(*kept), ReduceOp::kSum, {.async_op = true});
                return;
              }
              EXPECT_THROW(group.recv(std::span<float>(), 0),
                           Error);  // blocks until rank 0 has left
            },
            {.transport = GetParam()});
  ASSERT_TRUE(orphan->is_completed());
  EXPECT_THROW(orphan->wait(), Error);
}

TEST_P(FormationTest, a_forked_child_that_ends_does_not_end_the_group) {
  for (const bool destroys_the_group : {false, true}) {
    const auto results = run_process_ranks(2,
                                           [&](ProcessGroup& group) {
                                             // Starts the group's thread.
                                             group.barrier({.async_op = true})->wait();
                                             int got = 0;
                                             const int other = 1 - group.rank();
                                             // Starts the thread for messages.
                                             auto late = group.irecv(std::span(&got, 1), other);
                                             const pid_t child = ::fork();
                                             if (child == 0) {
                                               if (destroys_the_group) group.~ProcessGroup();
                                               _exit(0);
                                             }
                                             int status = 0;
                                             ::waitpid(child, &status, 0);
                                             EXPECT_TRUE(WIFEXITED(status)) << status;
                                             group.send(std::span(&status, 1), other);
                                             late->wait();
                                             int ones = 0;
                                             for (int i = 0; i < 100; ++i)
                                               ones += all_reduce_value(group, 1);
                                             return std::to_string(ones);
                                           },
                                           {.transport = GetParam()});
    for (const auto& result : results) EXPECT_EQ(result.report, "200");
  }
}

// Every call in the child throws an error that names fork(); the parent's group is not affected.
TEST_P(FormationTest, a_forked_child_that_uses_the_group_is_told_that_it_cannot) {
  const auto codes_of = [](ProcessGroup& group) {
    int value = 0;
    const auto buffer = std::span(&value, 1);
    const std::vector<std::function<void()>> calls = {
        [&] { group.all_reduce(buffer); },
        [&] { group.all_reduce(buffer, ReduceOp::kSum, {.async_op = true}); },
        [&] { group.send(buffer, 1); },
        [&] { group.irecv(buffer, 1); },
        [&] { group.allocate_symmetric(4096); },
        [&] { group.split(0, 0); },
        [&] { group.abort("a child says so"); }};
    std::string answers;
    for (const auto& call : calls) {
      try {
        call();
        answers += 'N';
      } catch (const Error& error) {
        const bool says_why = std::string_view(error.what()).find("fork()") != std::string::npos;
        answers += error.code() == ErrorCode::kInvalid && says_why ? 'Y' : 'n';
      }
    }
    return answers;
  };
  const auto results =
      run_process_ranks(2,
                        [&](ProcessGroup& group) {
                          group.barrier({.async_op = true})->wait();  // starts the group's thread
                          if (group.rank() == 0) {
                            int ends[2];
                            EXPECT_EQ(::pipe(ends), 0);
                            const pid_t child = ::fork();
                            if (child == 0) {
                              const std::string answers = codes_of(group);
                              _exit(::write(ends[1], answers.data(), answers.size()) < 0);
                            }
                            ::close(ends[1]);
                            std::array<char, 16> answers{};
                            EXPECT_EQ(::read(ends[0], answers.data(), answers.size()), 7);
                            EXPECT_STREQ(answers.data(), "YYYYYYY");
                            ::close(ends[0]);
                            ::waitpid(child, nullptr, 0);
                          }
                          return std::to_string(all_reduce_value(group, 1));
                        },
                        {.transport = GetParam()});
  for (const auto& result : results) EXPECT_EQ(result.report, "2");
}

// No thread waits for these operations. They run in order, and the group ends only after them.
TEST_P(FormationTest, work_without_a_wait_is_done_all_the_same) {
  std::vector<std::shared_ptr<std::vector<float>>> sums;
  for (int rank = 0; rank < 3; ++rank)
    sums.push_back(std::make_shared<std::vector<float>>(5000, 1));
  harness::run_ranks_ok(3,
                        [&](ProcessGroup& group) {
                          const auto mine = sums[static_cast<std::size_t>(group.rank())];
                          for (int i = 0; i < 4; ++i) {
                            group.all_reduce(std::span(*mine), ReduceOp::kSum,
                                             {.timeout = {}, .async_op = true, .keep_alive = mine});
                          }
                          group.barrier();  // runs after them
                        },
                        {.transport = GetParam()});
  for (const auto& sum : sums) EXPECT_EQ(*sum, std::vector<float>(5000, 81));
}

// The operation keeps alive a trainer that owns the group, so the group ends on its own thread.
TEST_P(FormationTest, an_operation_may_keep_the_last_owner_of_the_group_alive) {
  struct Trainer {
    std::shared_ptr<ProcessGroup> group;
    std::vector<float> data;
  };
  harness::run_ranks_ok(2,
                        [](ProcessGroup& world) {
                          auto trainer = std::make_shared<Trainer>();
                          trainer->group = world.new_group({0, 1});
                          trainer->data.assign(100'000, 1);
                          const std::weak_ptr<Trainer> seen = trainer;
                          const auto work = trainer->group->all_reduce(
                              std::span(trainer->data), ReduceOp::kSum,
                              {.timeout = {}, .async_op = true, .keep_alive = trainer});
                          trainer.reset();
                          work->wait();
                          EXPECT_TRUE(seen.expired());
                          world.barrier();
                        },
                        {.transport = GetParam()});
}

TEST_P(FormationTest, a_message_may_keep_the_last_owner_of_the_group_alive) {
  struct Trainer {
    std::shared_ptr<ProcessGroup> group;
    std::vector<float> data = std::vector<float>(1'000'000);
  };
  harness::run_ranks_ok(
      2,
      [](ProcessGroup& world) {
        auto trainer = std::make_shared<Trainer>();
        trainer->group = world.new_group({0, 1});
        ProcessGroup& group = *trainer->group;
        const std::weak_ptr<Trainer> seen = trainer;
        const auto data = std::span(trainer->data);
        const auto work = world.rank() == 0
                              ? group.isend(data, 1, 0, {.timeout = {}, .keep_alive = trainer})
                              : group.irecv(data, 0, 0, {.timeout = {}, .keep_alive = trainer});
        trainer.reset();
        work->wait();
        world.barrier();
        EXPECT_TRUE(harness::wait_until([&] { return seen.expired(); }, Deadline::after(20s), 1ms));
        world.barrier();
      },
      {.transport = GetParam()});
}

INSTANTIATE_TEST_SUITE_P(Transports, FormationTest,
                         testing::ValuesIn(harness::and_ucx({TransportKind::kShm,
                                                             TransportKind::kTcp})),
                         [](const auto& info) { return std::string(name_of(info.param)); });

}  // namespace
}  // namespace paceline
