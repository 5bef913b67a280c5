// The flight records that a group writes, and what errors report from them.

#include <barrier>
#include <filesystem>
#include <map>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "paceline/engine/collectives/flight/explain.h"
#include "paceline/engine/collectives/flight/group_flight.h"
#include "paceline/engine/rendezvous/launch_environment.h"
#include "paceline/engine/transport/wire.h"

#include "tests/harness/fresh_directory.h"
#include "tests/harness/says.h"
#include "tests/harness/thread_ranks.h"

namespace paceline {
namespace {

using harness::run_ranks;
using harness::run_ranks_ok;
using harness::Says;
using testing::AllOf;
using testing::Not;
using testing::StartsWith;
using namespace std::chrono_literals;

std::vector<FlightOperation> operations_of(const Flight& flight, Op op) {
  std::vector<FlightOperation> found;
  for (const auto& operation : flight.operations) {
    if (operation.call.op == static_cast<std::uint8_t>(op)) found.push_back(operation);
  }
  return found;
}

class FlightTest : public testing::TestWithParam<TransportKind> {
 protected:
  harness::RanksOptions options(std::chrono::milliseconds timeout = 20s) const {
    return {
        .transport = GetParam(), .group_timeout = timeout, .flight_directory = directory_.path()};
  }
  std::vector<Flight> flights() const {
    const auto found = read_flights(directory_.path());
    EXPECT_TRUE(found.problems.empty());
    return found.flights;
  }
  const FreshDirectory directory_;
};

TEST_P(FlightTest, every_kind_of_call_is_recorded_with_what_it_was) {
  run_ranks_ok(
      2,
      [](ProcessGroup& group) {
        std::vector<std::int32_t> data(30, 1);
        group.all_reduce(std::span(data), ReduceOp::kMax);
        group.broadcast(std::span(data), 1, {.async_op = true})->wait();
        const auto symmetric = group.allocate_symmetric(4096);
        const int other = 1 - group.rank();
        const auto sent = group.isend(std::span(data), other, 5);
        std::vector<std::int32_t> got(30);
        group.recv(std::span(got), kAnySource, 5);
        sent->wait();
        const auto half = group.new_group({1, 0});
        half->barrier();
      },
      options());
  for (const Flight& flight : flights()) {
    EXPECT_EQ(flight.end, FlightEnd::kInOrder);
    EXPECT_EQ(flight.num_dropped, 0u);
    for (const auto& operation : flight.operations) {
      EXPECT_EQ(operation.state, FlightState::kDone);
      EXPECT_LE(operation.entered, operation.started);
      EXPECT_LE(operation.started, operation.ended);
    }
    ASSERT_EQ(flight.groups.size(), 2u);
    EXPECT_EQ(flight.groups[0].name, "world");
    EXPECT_EQ(flight.groups[1].name, "world.0");
    EXPECT_EQ(flight.groups[1].rank, 1 - flight.rank);

    const auto reduced = operations_of(flight, Op::kAllReduce);
    ASSERT_EQ(reduced.size(), 1u);
    EXPECT_EQ(reduced[0].sequence, 1u);
    EXPECT_EQ(reduced[0].call.count, 30u);
    EXPECT_EQ(reduced[0].call.dtype, Dtype::kInt32);
    EXPECT_EQ(reduced[0].call.reduce_op, static_cast<std::uint8_t>(ReduceOp::kMax));
    EXPECT_FALSE(reduced[0].call.asynchronous);
    const auto broadcast = operations_of(flight, Op::kBroadcast);
    ASSERT_EQ(broadcast.size(), 1u);
    EXPECT_EQ(broadcast[0].sequence, 2u);
    EXPECT_EQ(broadcast[0].call.peer, 1);
    EXPECT_TRUE(broadcast[0].call.asynchronous);
    ASSERT_EQ(operations_of(flight, Op::kAllocate).size(), 1u);
    const auto sent = operations_of(flight, Op::kSend);
    ASSERT_EQ(sent.size(), 1u);
    EXPECT_EQ(sent[0].call.peer, 1 - flight.rank);
    EXPECT_EQ(sent[0].call.tag, 5u);
    EXPECT_EQ(sent[0].sequence, 0u);
    const auto received = operations_of(flight, Op::kReceive);
    ASSERT_EQ(received.size(), 1u);
    EXPECT_EQ(received[0].call.peer, kAnySource);
    const auto barrier = operations_of(flight, Op::kBarrier);
    ASSERT_EQ(barrier.size(), 1u);
    EXPECT_EQ(barrier[0].call.group, 1u);
    EXPECT_EQ(barrier[0].sequence, 1u);
  }
  EXPECT_EQ(explain(flights()).verdict, Verdict::kFinished);
}

TEST_P(FlightTest, the_time_outs_error_says_who_never_entered_and_where_the_records_are) {
  const auto results = run_ranks(
      3,
      [](ProcessGroup& group) {
        group.barrier();
        std::vector<float> data(1000);
        if (group.rank() == 2) {
          // Stays in the group without making a call until the other ranks have given up.
          EXPECT_THROW(group.recv(std::span<float>(), 0, 0, {.timeout = 60s}), Error);
          return;
        }
        group.all_reduce(std::span(data));
      },
      options(300ms));
  bool timed_out = false;
  for (int rank = 0; rank < 2; ++rank) {
    const auto& error = results[static_cast<std::size_t>(rank)].error;
    ASSERT_TRUE(error);
    EXPECT_THAT(error->what(), Says("flight.records", directory_.path()));
    timed_out |= error->code() == ErrorCode::kTimeout;
    EXPECT_THAT(error->what(),
                AllOf(Says("flight.by_the_records", "rank 2"),
                      Says("records.never_entered", "rank 2",
                           "all_reduce #2 (float32 x 1000, sum, group world)", "barrier #1 and ")));
  }
  EXPECT_TRUE(timed_out);
  const auto found = explain(flights());
  EXPECT_EQ(found.verdict, Verdict::kNeverEntered);
  EXPECT_EQ(found.ranks, std::vector<int>{2});
  for (const Flight& flight : flights()) EXPECT_EQ(flight.end, FlightEnd::kFailed);
}

TEST_P(FlightTest, a_wait_that_ends_early_names_the_operation_and_the_missing_ranks) {
  std::barrier<> early(2);
  run_ranks_ok(
      2,
      [&](ProcessGroup& group) {
        group.barrier();
        std::vector<float> data(10);
        if (group.rank() == 1) {
          early.arrive_and_wait();
          group.all_reduce(std::span(data));
          return;
        }
        const auto work = group.all_reduce(std::span(data), ReduceOp::kSum, {.async_op = true});
        try {
          work->wait(200ms);
          ADD_FAILURE() << "rank 1 was not waited for";
        } catch (const Error& error) {
          EXPECT_EQ(error.code(), ErrorCode::kTimeout);
          EXPECT_THAT(error.what(),
                      AllOf(Says("call.not_complete", "rank 0", "all_reduce #2 (float32 x 10, sum)",
                                 "world", 200),
                            Says("flight.by_the_records", "rank 1"),
                            Says("records.never_entered", "rank 1",
                                 "all_reduce #2 (float32 x 10, sum, group world)", "barrier #1")));
        }
        early.arrive_and_wait();
        work->wait();
      },
      options(20s));
}

TEST_P(FlightTest, a_mismatch_is_explained_with_both_sides) {
  run_ranks(
      3,
      [](ProcessGroup& group) {
        std::vector<float> data(group.rank() == 1 ? 7 : 8);
        group.all_reduce(std::span(data), ReduceOp::kSum, {.async_op = true})->wait();
      },
      options());
  EXPECT_EQ(explain(flights()).sentence,
            "ranks called different operations as #1 of group world: ranks 0, 2 called all_reduce "
            "(float32 x 8, sum); rank 1 called all_reduce (float32 x 7, sum)");
}

TEST_P(FlightTest, groups_used_in_different_orders_are_explained_as_crossed) {
  run_ranks(
      2,
      [](ProcessGroup& group) {
        const auto other = group.new_group({0, 1});
        ProcessGroup& first = group.rank() == 0 ? group : *other;
        ProcessGroup& second = group.rank() == 0 ? *other : group;
        float value = 1;
        first.all_reduce(std::span(&value, 1));
        second.all_reduce(std::span(&value, 1));
      },
      options(300ms));
  EXPECT_EQ(explain(flights()).verdict, Verdict::kCrossed);
}

TEST_P(FlightTest, an_abort_and_an_unanswered_receive_are_told_in_words) {
  run_ranks(
      2,
      [](ProcessGroup& group) {
        group.barrier();
        if (group.rank() == 1) {
          group.abort("the loss is not finite");
          return;
        }
        group.barrier();
      },
      options());
  EXPECT_THAT(
      explain(flights()).sentence,
      AllOf(Says("records.never_entered", "rank 1", "barrier #2 (group world)"),
            Says("explain.missing_rank_failed", "barrier #1", "rank 1: the loss is not finite")));
  const auto results = run_ranks(
      2,
      [](ProcessGroup& group) {
        group.barrier();
        float value = 0;
        if (group.rank() == 0) group.recv(std::span(&value, 1), 1, 3, {.timeout = 100ms});
      },
      options());
  ASSERT_TRUE(results[0].error);
  EXPECT_THAT(results[0].error->what(), Says("flight.records"));
  EXPECT_THAT(explain(flights()).sentence,
              Says("explain.failed_in", 0, "recv (float32 x 1, from rank 1, tag 3, group world)"));
}

TEST_P(FlightTest, an_argument_that_is_wrong_is_not_an_operation) {
  run_ranks_ok(
      2,
      [](ProcessGroup& group) {
        float value = 1;
        try {
          group.broadcast(std::span(&value, 1), 7);
          ADD_FAILURE();
        } catch (const Error& error) {
          EXPECT_THAT(error.what(), Not(Says("flight.records")));
        }
      },
      options());
  for (const Flight& flight : flights()) EXPECT_TRUE(flight.operations.empty());
}

std::string name_of_transport(const testing::TestParamInfo<TransportKind>& info) {
  return std::string(name_of(info.param));
}

INSTANTIATE_TEST_SUITE_P(Transports, FlightTest,
                         testing::Values(TransportKind::kLoopback, TransportKind::kShm,
                                         TransportKind::kTcp),
                         name_of_transport);

GetVariable variables(std::map<std::string, std::string> values) {
  return [values = std::move(values)](const std::string& name) {
    const auto found = values.find(name);
    return found == values.end() ? std::nullopt : std::optional(found->second);
  };
}

TEST(OpenFlightRecorder, records_where_the_environment_says_and_only_then) {
  const FreshDirectory directory;
  LaunchEnvironment environment;
  environment.rank = 3;
  environment.world_size = 4;
  EXPECT_EQ(open_flight_recorder(environment, variables({})), nullptr);
  EXPECT_EQ(open_flight_recorder(environment, variables({{"PACELINE_FLIGHT_DIR", ""}})), nullptr);
  const auto there = std::map<std::string, std::string>{{"PACELINE_FLIGHT_DIR", directory.path()}};
  EXPECT_EQ(open_flight_recorder(LaunchEnvironment{}, variables(there)), nullptr);
  auto recorder = open_flight_recorder(environment, variables(there));
  ASSERT_NE(recorder, nullptr);
  EXPECT_EQ(recorder->path(), directory.path() + "/rank-003.flight");
  recorder.reset();
  EXPECT_TRUE(std::filesystem::is_empty(directory.path()));
  auto kept = there;
  kept["PACELINE_FLIGHT_KEEP"] = "1";
  open_flight_recorder(environment, variables(kept)).reset();
  EXPECT_EQ(read_flights(directory.path()).flights.at(0).end, FlightEnd::kInOrder);
}

TEST(OpenFlightRecorder, a_directory_that_cannot_be_made_costs_the_records_only) {
  LaunchEnvironment environment;
  environment.world_size = 2;
  EXPECT_EQ(
      open_flight_recorder(environment, variables({{"PACELINE_FLIGHT_DIR", "/proc/nowhere/x"}})),
      nullptr);
}

}  // namespace
}  // namespace paceline
