#include <cstdlib>
#include <fstream>

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "paceline/engine/telemetry/call_gauge_file.h"

#include "tests/harness/fresh_directory.h"

namespace paceline {
namespace {

class CallGaugeTest : public testing::Test {
 protected:
  void SetUp() override {
    setenv("PACELINE_FLIGHT_DIR", folder_.path().c_str(), 1);
    setenv("RANK", "7", 1);
  }
  void TearDown() override {
    unsetenv("PACELINE_FLIGHT_DIR");
    unsetenv("RANK");
  }
  std::optional<CallReading> read() { return read_call_gauge(path_); }
  static const CallFigures& figures(const CallReading& reading, CallSide side,
                                    const std::string& method) {
    for (const CallFigures& one : reading.methods) {
      if (one.side == side && one.method == method) return one;
    }
    throw std::runtime_error("no " + method);
  }

  FreshDirectory folder_;
  const std::string path_ = folder_.file("rank-007.calls");
};

TEST_F(CallGaugeTest, counts_calls_by_method_for_whoever_looks) {
  const auto gauge = CallGauge::of_process("trainer0");
  ASSERT_TRUE(gauge);
  EXPECT_EQ(CallGauge::of_process("another worker of this process"), gauge);
  const auto ask = gauge->counter(CallSide::kCaller, 5, "ask");
  const auto served = gauge->counter(CallSide::kCallee, 5, "ask");
  for (int i = 0; i < 3; ++i) CallGauge::begin(ask);
  CallGauge::end(ask, 1000, false);
  CallGauge::end(ask, 1'000'000, true);
  for (int i = 0; i < 4; ++i) CallGauge::begin(served);
  CallGauge::start(served);
  CallGauge::start(served);
  CallGauge::end(served, 10, false);
  const auto reading = read();
  ASSERT_TRUE(reading);
  EXPECT_EQ(reading->rank, 7);
  EXPECT_EQ(reading->pid, getpid());
  EXPECT_EQ(reading->worker, "trainer0");
  EXPECT_EQ(static_cast<int>(reading->process), static_cast<int>(FlightProcess::kRunning));
  EXPECT_EQ(reading->methods.size(), 2u);
  const auto caller = figures(*reading, CallSide::kCaller, "ask");
  EXPECT_EQ(caller.num_ended(), 2u);
  EXPECT_EQ(caller.failed, 1u);
  EXPECT_EQ(caller.under_way(), 1u);
  const auto callee = figures(*reading, CallSide::kCallee, "ask");
  EXPECT_EQ(callee.under_way(), 3u);
  EXPECT_EQ(callee.queued(), 2u);
}

TEST_F(CallGaugeTest, shows_the_oldest_open_calls_of_all_workers) {
  const auto gauge = CallGauge::of_process("a");
  std::vector<OpenCall> many;
  for (std::uint64_t i = 0; i < 200; ++i) {
    many.push_back({"a", "server", "pull", i, 9, 1000 - i, OpenState::kSent});
  }
  const std::vector<OpenCall> one = {{"b", "a", "push", 1, 8, 1, OpenState::kRunning}};
  gauge->publish("a", many, {}, 5, 0);
  gauge->publish("b", {}, one, 2, 3);
  auto reading = read();
  EXPECT_EQ(reading->references, 7u);
  EXPECT_EQ(reading->objects, 3u);
  ASSERT_EQ(reading->open[0].size(), calls::kNumOpen);
  EXPECT_EQ(reading->open[0][0].number, 199u);
  EXPECT_EQ(reading->open[0][0].other, "server");
  ASSERT_EQ(reading->open[1].size(), 1u);
  EXPECT_EQ(reading->open[1][0].worker, "b");
  EXPECT_EQ(reading->open[1][0].state, OpenState::kRunning);
  gauge->publish("a", {}, {}, 0, 0);
  reading = read();
  EXPECT_TRUE(reading->open[0].empty());
  EXPECT_EQ(reading->open[1].size(), 1u);
}

TEST_F(CallGaugeTest, has_room_for_64_methods_at_each_end) {
  const auto gauge = CallGauge::of_process("a");
  for (std::uint64_t i = 1; i <= calls::kNumMethods; ++i) {
    EXPECT_NE(gauge->counter(CallSide::kCaller, i * 64, "m" + std::to_string(i)).method, nullptr);
  }
  EXPECT_EQ(gauge->counter(CallSide::kCaller, 7, "late").method, nullptr);
  EXPECT_NE(gauge->counter(CallSide::kCallee, 7, "other end").method, nullptr);
  CallGauge::begin({});  // a method for which the gauge has no room
  CallGauge::end({}, 1, true);
}

TEST_F(CallGaugeTest, buckets_tell_times_to_a_fifth) {
  for (std::uint64_t ns = 1; ns < std::uint64_t{1} << 38; ns = ns + ns / 7 + 1) {
    const std::size_t bucket = calls::bucket_of(ns);
    EXPECT_LE(calls::bucket_begin(bucket), ns);
    if (bucket + 1 == calls::kNumBuckets) continue;
    EXPECT_GT(calls::bucket_begin(bucket + 1), ns);
    if (ns >= 128) {
      EXPECT_LE(calls::bucket_begin(bucket + 1), calls::bucket_begin(bucket) * 5 / 4);
    }
  }
  std::vector<std::uint64_t> ended(calls::kNumBuckets);
  EXPECT_FALSE(call_seconds(ended, 0.5));
  ended[calls::bucket_of(10'000)] = 99;
  ended[calls::bucket_of(1'000'000'000)] = 1;
  EXPECT_NEAR(*call_seconds(ended, 0.5), 10e-6, 2.5e-6);
  EXPECT_NEAR(*call_seconds(ended, 0.99), 10e-6, 2.5e-6);
  EXPECT_NEAR(*call_seconds(ended, 1), 1, 0.25);
}

TEST_F(CallGaugeTest, is_there_only_where_someone_can_look) {
  unsetenv("PACELINE_FLIGHT_DIR");
  EXPECT_EQ(CallGauge::of_process("a"), nullptr);
  setenv("PACELINE_FLIGHT_DIR", "", 1);
  EXPECT_EQ(CallGauge::of_process("a"), nullptr);
  setenv("PACELINE_FLIGHT_DIR", "/nowhere/at/all", 1);
  EXPECT_EQ(CallGauge::of_process("a"), nullptr);
}

TEST_F(CallGaugeTest, is_gone_after_a_clean_end_unless_the_launcher_wants_it) {
  CallGauge::of_process("a");
  EXPECT_FALSE(read());
  setenv("PACELINE_FLIGHT_KEEP", "1", 1);
  CallGauge::of_process("a");
  unsetenv("PACELINE_FLIGHT_KEEP");
  EXPECT_TRUE(read());
}

TEST_F(CallGaugeTest, belongs_to_one_process_at_a_time) {
  const auto gauge = CallGauge::of_process("a");
  const pid_t child = fork();
  if (child == 0) {
    const bool has_none = CallGauge::of_process("b") == nullptr;
    const bool is_refused = !CallGauge(path_, 7, "b").is_open();
    _exit(has_none && is_refused ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(read()->worker, "a");
}

TEST_F(CallGaugeTest, anything_else_is_no_gauge) {
  EXPECT_FALSE(read());
  std::ofstream(path_) << "PLCALLS1";
  EXPECT_FALSE(read());
  std::ofstream(path_) << std::string(sizeof(calls::File), 'x');
  EXPECT_FALSE(read());
  std::string hostile(sizeof(calls::File), '\xff');
  std::copy(calls::kMagic.begin(), calls::kMagic.end(), hostile.begin());
  std::ofstream(path_) << hostile;
  const auto reading = read();
  ASSERT_TRUE(reading);
  EXPECT_TRUE(reading->open[0].empty());
  // The file belongs to another rank than its name says.
  EXPECT_TRUE(read_call_gauges(folder_.path()).empty());
}

}  // namespace
}  // namespace paceline
