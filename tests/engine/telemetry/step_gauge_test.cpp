#include "paceline/engine/telemetry/step_gauge.h"

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>
#include <unistd.h>

#include "tests/harness/fresh_directory.h"

namespace paceline {
namespace {

class StepGaugeTest : public testing::Test {
 protected:
  void SetUp() override {
    setenv("PACELINE_FLIGHT_DIR", folder_.path().c_str(), 1);
    setenv("PACELINE_FLIGHT_KEEP", "1", 1);
    setenv("RANK", "7", 1);
  }
  void TearDown() override {
    unsetenv("PACELINE_FLIGHT_DIR");
    unsetenv("PACELINE_FLIGHT_KEEP");
    unsetenv("RANK");
  }
  std::optional<StepReading> read() { return read_step_gauge(folder_.file("rank-007.steps")); }
  FreshDirectory folder_;
};

TEST_F(StepGaugeTest, counts_for_whoever_looks_while_the_program_runs) {
  StepGauge gauge;
  ASSERT_TRUE(read());
  EXPECT_EQ(read()->steps, 0u);
  gauge.step(32, 0.5, 0.125);
  gauge.step(16, 0.25, 0);
  EXPECT_EQ(read()->pid, getpid());
  EXPECT_EQ(read()->steps, 2u);
  EXPECT_EQ(read()->samples, 48u);
  EXPECT_DOUBLE_EQ(read()->seconds, 0.75);
  EXPECT_DOUBLE_EQ(read()->communication_seconds, 0.125);
}

TEST_F(StepGaugeTest, continues_in_the_same_process_and_starts_again_in_another) {
  { StepGauge().step(1, 1, 0); }
  { StepGauge().step(1, 1, 0); }
  EXPECT_EQ(read()->steps, 2u);
  std::fstream file(folder_.file("rank-007.steps"), std::ios::in | std::ios::out);
  file.seekp(8);
  file.put('\1').put('\0').put('\0').put('\0');
  file.close();
  StepGauge gauge;
  EXPECT_EQ(read()->steps, 0u);
}

TEST_F(StepGaugeTest, says_where_a_resumed_training_began) {
  StepGauge gauge;
  EXPECT_FALSE(read()->begun_at);
  gauge.begin_at(0);
  EXPECT_EQ(read()->begun_at, 0u);
  gauge.begin_at(50);  // another loop of the same process
  EXPECT_EQ(read()->begun_at, 0u);
}

TEST_F(StepGaugeTest, says_when_the_first_step_began_and_the_last_one_ended) {
  const auto now = [] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
  };
  StepGauge gauge;
  EXPECT_FALSE(read()->first_began);
  EXPECT_FALSE(read()->last_ended);
  const double begin = now();
  gauge.step(1, 0.25, 0);
  const double middle = now();
  gauge.step(1, 0.25, 0);
  EXPECT_GE(*read()->first_began, begin - 0.25 - 1e-6);
  EXPECT_LE(*read()->first_began, middle - 0.25 + 1e-6);
  EXPECT_GE(*read()->last_ended, middle - 1e-6);
  EXPECT_LE(*read()->last_ended, now() + 1e-6);
}

// A program in another language may write such a file.
TEST_F(StepGaugeTest, a_file_without_moments_is_read) {
  { StepGauge().step(1, 1, 0); }
  std::filesystem::resize_file(folder_.file("rank-007.steps"), 64);
  EXPECT_EQ(read()->steps, 1u);
  EXPECT_FALSE(read()->last_ended);
}

TEST_F(StepGaugeTest, leaves_nothing_unless_it_shall) {
  unsetenv("PACELINE_FLIGHT_KEEP");
  { StepGauge().step(1, 1, 0); }
  EXPECT_FALSE(std::filesystem::exists(folder_.file("rank-007.steps")));
}

TEST_F(StepGaugeTest, takes_nonsense_and_is_silent_where_it_cannot_write) {
  StepGauge gauge;
  gauge.step(-5, -1, -1);
  EXPECT_EQ(read()->samples, 0u);
  EXPECT_EQ(read()->seconds, 0.0);
  setenv("PACELINE_FLIGHT_DIR", "/no/such/place", 1);
  StepGauge().step(1, 1, 1);
  unsetenv("PACELINE_FLIGHT_DIR");
  StepGauge().step(1, 1, 1);
}

TEST_F(StepGaugeTest, a_file_that_is_none_is_not_read) {
  EXPECT_FALSE(read_step_gauge(folder_.file("missing")));
  std::ofstream(folder_.file("short")) << "PLSTEPS1";
  EXPECT_FALSE(read_step_gauge(folder_.file("short")));
  std::ofstream(folder_.file("other")) << std::string(64, 'x');
  EXPECT_FALSE(read_step_gauge(folder_.file("other")));
}

}  // namespace
}  // namespace paceline
