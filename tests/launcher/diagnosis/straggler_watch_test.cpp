#include "paceline/launcher/diagnosis/straggler_watch.h"

#include <filesystem>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/harness/fresh_directory.h"
#include "tests/harness/says.h"

namespace paceline::launcher {
namespace {

using namespace std::chrono_literals;
using harness::Says;

TEST(StragglerCause, is_what_takes_a_tenth_of_the_time_quota_first) {
  EXPECT_EQ(straggler_cause({.span = 10, .on_cpu = 6, .ready = 2, .throttled = 3}),
            "throttled: the cgroup's cpu quota was used up 30% of the time");
  EXPECT_EQ(straggler_cause({.span = 10, .on_cpu = 5, .ready = 4.5, .throttled = 0.5}),
            "other load on its cpus: it was ready to run and got no cpu 45% of the time");
  EXPECT_THAT(straggler_cause({.span = 10, .on_cpu = 3, .ready = 0.1, .in_operations = 1}),
              Says("straggler.waits_for_something", 60));
  EXPECT_THAT(straggler_cause({.span = 10, .on_cpu = 9, .ready = 0.5, .in_operations = 0.5}),
              Says("straggler.computes_longer"));
  // Several threads use more cpu time than the span is long.
  EXPECT_THAT(straggler_cause({.span = 10, .on_cpu = 38, .ready = 0.5, .in_operations = 1}),
              Says("straggler.computes_longer"));
}

TEST(StragglerCause, throttling_is_read_from_both_versions_of_cgroups) {
  const FreshDirectory root;
  const auto write = [&](const std::string& name, const std::string& text) {
    std::filesystem::create_directories(std::filesystem::path(root.file(name)).parent_path());
    std::ofstream(root.file(name)) << text;
  };
  write("a/cpu.stat", "usage_usec 5\nnr_periods 1\nnr_throttled 1\nthrottled_usec 2500000\n");
  EXPECT_DOUBLE_EQ(throttled_seconds(root.path(), "0::/a\n"), 2.5);
  write("cpu/b/cpu.stat", "nr_periods 1\nnr_throttled 1\nthrottled_time 1500000000\n");
  EXPECT_DOUBLE_EQ(throttled_seconds(root.path(), "3:cpu,cpuacct:/b\n"), 1.5);
  EXPECT_DOUBLE_EQ(throttled_seconds(root.path(), "3:memory:/b\n0::/c\n"), 0);
}

TEST(StragglerWatch, without_records_there_is_none) {
  const FreshDirectory directory;
  StragglerWatch watch(1s, directory.path());
  EXPECT_FALSE(watch.look({{0, 1}, {1, 1}}));
}

}  // namespace
}  // namespace paceline::launcher
