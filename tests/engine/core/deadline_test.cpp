#include "paceline/engine/core/deadline.h"

#include <chrono>

#include <gtest/gtest.h>

namespace paceline {
namespace {

using namespace std::chrono_literals;
using Clock = Deadline::Clock;

TEST(Deadline, is_not_before_its_time_and_not_much_later) {
  for (const std::chrono::nanoseconds timeout : {0ns, 1'000'000ns, 999'000'000ns}) {
    const auto before = Clock::now();
    const auto deadline = Deadline::after(timeout);
    EXPECT_GE(deadline.moment(), before + timeout);
    EXPECT_LE(deadline.moment(), Clock::now() + timeout);
  }
  for (const std::chrono::nanoseconds timeout : {1'000'000'000ns, 3'600'000'000'000ns}) {
    const auto before = Clock::now();
    const auto deadline = Deadline::after(timeout);
    EXPECT_GE(deadline.moment(), before + timeout);
    EXPECT_LE(deadline.moment(), Clock::now() + timeout + 10ms);
  }
}

TEST(Deadline, a_time_that_no_clock_can_count_is_never) {
  EXPECT_EQ(Deadline::after(std::chrono::milliseconds::max()).moment(), Deadline::never().moment());
  EXPECT_EQ(Deadline::after(std::chrono::hours::max()).moment(), Deadline::never().moment());
  EXPECT_EQ(Deadline::after(std::chrono::nanoseconds::max()).moment(), Deadline::never().moment());
  EXPECT_FALSE(Deadline::after(std::chrono::milliseconds::max()).expired());
}

TEST(Deadline, below_zero_is_now) {
  EXPECT_TRUE(Deadline::after(-1ms).expired());
  EXPECT_TRUE(Deadline::after(std::chrono::milliseconds::min()).expired());
}

}  // namespace
}  // namespace paceline
