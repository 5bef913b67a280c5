#include "paceline/launcher/messages/clock_comparison.h"

#include <gtest/gtest.h>

namespace paceline::launcher {
namespace {

using namespace std::chrono_literals;
using std::chrono::nanoseconds;

// An exchange with a clock that is `ahead`. The messages take `there` and `back`.
ClockExchange exchange(nanoseconds ahead, nanoseconds there, nanoseconds back,
                       nanoseconds asked = 10s) {
  const nanoseconds heard = asked + there + ahead;
  return {asked, heard, heard + 5us, asked + there + 5us + back};
}

TEST(ClockComparison, is_exact_when_both_ways_take_the_same) {
  ClockComparison clock;
  EXPECT_FALSE(clock.measured());
  clock.take(exchange(1h, 100us, 100us));
  ASSERT_TRUE(clock.measured());
  EXPECT_EQ(clock.offset(), -1h);
  EXPECT_EQ(clock.error(), 100us);
  EXPECT_EQ(clock.longest_round_trip(), 200us);
  EXPECT_EQ(clock.drift(), 0ns);
}

TEST(ClockComparison, is_off_by_half_the_round_trip_at_most_whichever_way_is_slow) {
  for (const auto& [there, back] : {std::pair(3ms, 0ms), std::pair(0ms, 3ms)}) {
    ClockComparison clock;
    clock.take(exchange(7s, there, back));
    EXPECT_LE(std::chrono::abs(clock.offset() + 7s), clock.error());
    EXPECT_EQ(clock.error(), 1500us);
  }
}

TEST(ClockComparison, the_shortest_round_trip_counts) {
  ClockComparison clock;
  clock.take(exchange(1s, 40ms, 1ms));
  clock.take(exchange(1s, 50us, 50us));
  clock.take(exchange(1s, 1ms, 90ms));
  EXPECT_EQ(clock.offset(), -1s);
  EXPECT_EQ(clock.error(), 50us);
  EXPECT_EQ(clock.longest_round_trip(), 91ms);
}

TEST(ClockComparison, old_exchanges_make_room_for_new_ones_and_a_drift_is_seen) {
  ClockComparison clock;
  clock.take(exchange(1s, 10us, 10us));
  for (int i = 0; i < 20; ++i) clock.take(exchange(1s + 3ms, 100us, 100us));
  EXPECT_EQ(clock.offset(), -1s - 3ms);
  EXPECT_EQ(clock.error(), 100us);
  EXPECT_EQ(clock.drift(), 3ms - 110us);
}

TEST(ClockComparison, impossible_clock_readings_are_left_out) {
  ClockComparison clock;
  clock.take({10s, 5s, 4s, 11s});                  // answered before the question arrived
  clock.take({10s, 5s, 8s, 11s});                  // took longer to answer than the round trip
  clock.take({10s, 5s, 5s, 9s});                   // came back before it was sent
  clock.take({10s, nanoseconds::min(), 5s, 11s});  // not a possible time
  clock.take({10s, 5s, nanoseconds::max(), 11s});
  EXPECT_FALSE(clock.measured());
}

}  // namespace
}  // namespace paceline::launcher
