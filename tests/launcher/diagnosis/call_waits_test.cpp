#include "paceline/launcher/diagnosis/call_waits.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/harness/says.h"

namespace paceline::launcher {
namespace {

using harness::Says;
using testing::EndsWith;

constexpr std::uint64_t kOneSecond = 1'000'000'000, kNow = 100 * kOneSecond;

// The reading of a worker whose process runs.
CallReading worker(int rank, const std::string& name) {
  CallReading reading;
  reading.rank = rank;
  reading.worker = name;
  reading.process = FlightProcess::kRunning;
  reading.now = kNow;
  reading.looked = kNow - kOneSecond / 10;
  return reading;
}

OpenCall call_of(const std::string& caller, const std::string& callee, double seconds,
                 OpenState state = OpenState::kSent) {
  const auto begun = kNow - static_cast<std::uint64_t>(seconds * 1e9);
  return {caller, callee, "pull", 7, worker_hash(caller), begun, state};
}
// The same call, as its callee recorded it.
OpenCall at_callee(const OpenCall& call, OpenState state, double seconds) {
  OpenCall there = call;
  std::swap(there.worker, there.other);
  there.state = state;
  there.begun = kNow - static_cast<std::uint64_t>(seconds * 1e9);
  return there;
}

struct Row {
  std::string name;
  OpenState sent;
  std::optional<OpenState> there;
  FlightProcess callee;
  bool has_record;
  CalleeState state;
  std::string words;
};

class CallWaits : public testing::TestWithParam<Row> {};

TEST_P(CallWaits, say_what_the_callee_does) {
  const Row& row = GetParam();
  CallReading caller = worker(1, "trainer1"), callee = worker(4, "server0");
  const OpenCall call = call_of("trainer1", "server0", 12.5, row.sent);
  caller.open[0] = {call};
  callee.process = row.callee;
  if (row.there) callee.open[1] = {at_callee(call, *row.there, 12.25)};
  const auto waits = row.has_record ? call_waits({caller, callee}) : call_waits({caller});
  ASSERT_EQ(waits.size(), 1u);
  EXPECT_STREQ(name_of(waits[0].state), name_of(row.state));
  EXPECT_DOUBLE_EQ(waits[0].seconds, 12.5);
  EXPECT_EQ(explain_waits(waits),
            std::string("trainer1 (rank 1) has been waiting for 12.5 s for pull of server0") +
                (row.has_record ? " (rank 4)" : "") + ": " + row.words);
}

INSTANTIATE_TEST_SUITE_P(
    Table, CallWaits,
    testing::Values(
        Row{"its_handler_runs", OpenState::kSent, OpenState::kRunning, FlightProcess::kRunning,
            true, CalleeState::kRunning, "its handler has been running there for 12.2 s"},
        Row{"it_is_queued", OpenState::kSent, OpenState::kQueued, FlightProcess::kRunning, true,
            CalleeState::kQueued, "it has been in the queue there for 12.2 s"},
        Row{"it_is_not_known_there",
            OpenState::kSent,
            {},
            FlightProcess::kRunning,
            true,
            CalleeState::kNotTaken,
            "server0 has not received it yet, or has already answered"},
        Row{"there_is_no_connection",
            OpenState::kNotSent,
            {},
            FlightProcess::kRunning,
            true,
            CalleeState::kNotSent,
            "it has not been sent, because there is no connection"},
        Row{"the_callee_is_stopped",
            OpenState::kSent,
            {},
            FlightProcess::kStopped,
            true,
            CalleeState::kStopped,
            "the process of server0 is stopped"},
        Row{"the_callee_is_stopped_in_the_handler", OpenState::kSent, OpenState::kRunning,
            FlightProcess::kStopped, true, CalleeState::kStopped,
            "the process of server0 is stopped and had received the call"},
        Row{"the_callee_is_gone", OpenState::kSent, OpenState::kRunning, FlightProcess::kGone, true,
            CalleeState::kGone, "the process of server0 has ended"},
        Row{"the_callee_has_no_record",
            OpenState::kSent,
            {},
            FlightProcess::kRunning,
            false,
            CalleeState::kUnknown,
            "server0 has no record here"}),
    [](const auto& info) { return info.param.name; });

TEST(CallWaitsOfMany, a_call_of_another_process_of_that_name_is_not_taken_for_it) {
  CallReading caller = worker(1, "trainer1"), callee = worker(4, "server0");
  const OpenCall call = call_of("trainer1", "server0", 2);
  caller.open[0] = {call};
  OpenCall other = at_callee(call, OpenState::kRunning, 2);
  other.caller += 1;
  callee.open[1] = {other};
  EXPECT_EQ(call_waits({caller, callee})[0].state, CalleeState::kNotTaken);
}

// trainer0 waits for server0, which waits for store0, whose handler is running.
TEST(CallWaitsOfMany, the_last_of_a_chain_explains_the_others) {
  CallReading trainer = worker(0, "trainer0"), server = worker(1, "server0"),
              store = worker(2, "store0");
  trainer.open[0] = {call_of("trainer0", "server0", 9)};
  server.open[0] = {call_of("server0", "store0", 8)};
  store.open[1] = {at_callee(server.open[0][0], OpenState::kRunning, 8)};
  const auto waits = call_waits({trainer, server, store});
  EXPECT_EQ(explain_waits(waits),
            "server0 (rank 1) has been waiting for 8.0 s for pull of store0 (rank 2): its handler "
            "has been running there for 8.0 s; 1 more call waits");
}

TEST(CallWaitsOfMany, workers_that_wait_for_each_other_are_a_circle) {
  CallReading a = worker(0, "a"), b = worker(1, "b"), c = worker(2, "c");
  a.open[0] = {call_of("a", "b", 9)};
  b.open[0] = {call_of("b", "c", 8)};
  c.open[0] = {call_of("c", "b", 7)};
  EXPECT_THAT(explain_waits(call_waits({a, b, c})), Says("hang.calls_in_a_circle", "b", "c", "b"));
}

// Rank 0 has not arrived at a collective because it waits for a call.
TEST(CallWaitsOfMany, tell_why_a_rank_that_operations_blame_is_late) {
  CallReading trainer = worker(0, "trainer0"), server = worker(1, "server0");
  trainer.open[0] = {call_of("trainer0", "server0", 9)};
  server.open[1] = {at_callee(trainer.open[0][0], OpenState::kRunning, 8)};
  const auto waits = call_waits({trainer, server});
  Explanation late{.verdict = Verdict::kNeverEntered, .sentence = "rank 0 never entered"};
  late.ranks = {0};
  EXPECT_EQ(with_calls(late, waits).sentence, "rank 0 never entered; " + waits[0].sentence);
  late.ranks = {1};
  EXPECT_EQ(with_calls(late, waits).sentence, "rank 0 never entered");
  EXPECT_EQ(with_calls({.verdict = Verdict::kFinished, .sentence = "all"}, waits).sentence,
            waits[0].sentence);
  EXPECT_EQ(with_calls(late, {}).sentence, "rank 0 never entered");
}

TEST(CallWaitsOfMany, of_a_job_that_is_over_the_last_state_counts) {
  CallReading caller = worker(1, "trainer1"), callee = worker(4, "server0");
  caller.open[0] = {call_of("trainer1", "server0", 5)};
  callee.open[1] = {at_callee(caller.open[0][0], OpenState::kRunning, 4)};
  caller.process = callee.process = FlightProcess::kGone;
  EXPECT_EQ(call_waits({caller, callee})[0].state, CalleeState::kRunning);
}

TEST(CallWaitsOfMany, of_a_worker_that_is_gone_the_time_ends_when_it_looked_last) {
  CallReading caller = worker(1, "trainer1");
  caller.open[0] = {call_of("trainer1", "server0", 5)};
  caller.process = FlightProcess::kGone;
  caller.looked = kNow - 2 * kOneSecond;
  EXPECT_DOUBLE_EQ(call_waits({caller})[0].seconds, 3);
}

}  // namespace
}  // namespace paceline::launcher
