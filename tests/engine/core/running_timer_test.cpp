#include <atomic>
#include <thread>

#include <gtest/gtest.h>
#include <sched.h>

#include "paceline/engine/core/timing.h"

namespace paceline {
namespace {

using namespace std::chrono_literals;

void pin_to_first_core() {
  cpu_set_t cores, first;
  CPU_ZERO(&cores);
  ASSERT_EQ(sched_getaffinity(0, sizeof cores, &cores), 0);
  CPU_ZERO(&first);
  for (int core = 0; core < CPU_SETSIZE && CPU_COUNT(&first) == 0; ++core) {
    if (CPU_ISSET(core, &cores)) CPU_SET(core, &first);
  }
  ASSERT_EQ(sched_setaffinity(0, sizeof first, &first), 0);
}

TEST(RunningTimer, leaves_out_what_others_take_of_the_core) {
  std::atomic<bool> ended = false;
  std::thread other([&] {
    pin_to_first_core();
    while (!ended) {
    }
  });
  std::thread timed([&] {
    pin_to_first_core();
    const RunningTimer timer;
    while (timer.wall_seconds() < 0.5) {
    }
    EXPECT_LT(timer.seconds(), 0.8 * timer.wall_seconds());
    EXPECT_GT(timer.seconds(), 0);
    ended = true;
  });
  timed.join();
  other.join();
}

TEST(RunningTimer, counts_sleep) {
  const RunningTimer timer;
  std::this_thread::sleep_for(20ms);
  EXPECT_GE(timer.wall_seconds(), 0.02);
  EXPECT_GT(timer.seconds(), 0.01);
}

}  // namespace
}  // namespace paceline
