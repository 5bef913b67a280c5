#include <filesystem>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "paceline/engine/telemetry/timeline.h"
#include "paceline/engine/telemetry/timeline_file.h"
#include "paceline/launcher/job_timeline/job_timeline.h"
#include "paceline/launcher/job_timeline/timeline_trace.h"

#include "tests/harness/fresh_directory.h"

namespace paceline::launcher {
namespace {

using namespace std::chrono_literals;
using testing::ElementsAre;
using testing::HasSubstr;

// Host 1's clock is an hour ahead of host 0's. The launcher knows their offsets to within 50 us and
// 70 us.
const std::vector<ClockShift> kHosts = {{0s, 50us}, {-1h, 70us}};

TEST(TimelineClocks, the_ranks_measurements_count_as_long_as_the_launcher_agrees) {
  const ClockShift measured{-1h + 60us, 20us};
  EXPECT_THAT(shifts_to_one_clock({{0, 0, 0, {}}, {1, 1, 0, measured}}, kHosts),
              ElementsAre(ClockShift{}, ClockShift{}));
}

TEST(TimelineClocks, clocks_that_have_drifted_since_are_taken_from_the_launcher) {
  const ClockShift measured{-1h + 5ms, 20us};
  const auto shifts = shifts_to_one_clock({{0, 0, 0, {}}, {1, 1, 0, measured}}, kHosts);
  EXPECT_THAT(shifts, ElementsAre(ClockShift{}, ClockShift{-5ms, 100us}));
  EXPECT_EQ(measured.offset + shifts[1].offset, -1h);
  EXPECT_EQ(measured.error + shifts[1].error, 120us);
}

TEST(TimelineClocks, a_rank_that_could_not_measure_is_put_there_by_the_launcher) {
  EXPECT_THAT(shifts_to_one_clock({{0, 0, 0, {}}, {1, 1, 0, {}}}, kHosts),
              ElementsAre(ClockShift{}, ClockShift{-1h, 120us}));
}

TEST(TimelineClocks, a_generation_with_another_first_host_uses_the_same_clock) {
  // In a later generation rank 0 runs on host 1, and host 0 has measured its clock against host
  // 1's.
  const ClockShift towards_first{-1h, 20us}, towards_second{1h, 20us};
  const auto shifts = shifts_to_one_clock(
      {{0, 0, 0, {}}, {1, 1, 0, towards_first}, {1, 0, 1, {}}, {0, 1, 1, towards_second}}, kHosts);
  EXPECT_THAT(shifts, ElementsAre(ClockShift{}, ClockShift{}, ClockShift{-1h, 120us},
                                  ClockShift{-1h, 120us}));
}

TEST(TimelineClocks, without_any_rank_0_the_first_host_that_is_there_counts) {
  const auto shifts = shifts_to_one_clock({{1, 2, 0, {}}, {0, 1, 0, {}}}, kHosts);
  EXPECT_THAT(shifts, ElementsAre(ClockShift{}, ClockShift{1h, 120us}));
}

// The offset is just plausible, but the sum with the offset of the host's clock is not.
TEST(TimelineClocks, a_timeline_that_cannot_be_put_on_the_clock_is_left_out_and_its_host_named) {
  const FreshDirectory records;
  const std::chrono::nanoseconds largest((std::int64_t{1} << 61) - 1);
  Timeline({.directory = records.path(), .rank = 0, .world_size = 2});
  Timeline({.directory = records.path(), .rank = 1, .world_size = 2}).set_clock(largest, 1us);
  ClockComparison ahead;
  ahead.take({.asked = 0s, .heard = 1h, .answered = 1h, .returned = 100us});
  TimelineCollection timelines(records.file("trace.json"));
  const auto paths = timelines_in(records.path());
  ASSERT_EQ(paths.size(), 2u);
  for (std::size_t host = 0; host < 2; ++host) timelines.take(host, pack_timeline(paths[host]));
  EXPECT_THAT(timelines.finish({{"a", {}}, {"b", ahead}}),
              HasSubstr("left out of the timeline: b: "));
  EXPECT_TRUE(std::filesystem::exists(records.file("trace.json")));
}

}  // namespace
}  // namespace paceline::launcher
