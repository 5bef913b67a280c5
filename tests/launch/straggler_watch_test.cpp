#include "paceline/launch/straggler_watch.h"

#include <filesystem>
#include <fstream>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/launch/paceline_process.h"

namespace paceline::launch {
namespace {

using namespace std::chrono_literals;
using testing::AnyOf;
using testing::HasSubstr;
using testing::Not;

TEST(StragglerCause, is_what_takes_a_tenth_of_the_time_quota_first) {
  EXPECT_EQ(straggler_cause({.span = 10, .on_cpu = 6, .ready = 2, .throttled = 3}),
            "throttled: the cgroup's cpu quota was used up 30% of the time");
  EXPECT_EQ(straggler_cause({.span = 10, .on_cpu = 5, .ready = 4.5, .throttled = 0.5}),
            "other load on its cpus: it was ready to run and got no cpu 45% of the time");
  EXPECT_THAT(straggler_cause({.span = 10, .on_cpu = 3, .ready = 0.1, .in_operations = 1}),
              HasSubstr("such as data: 60% of the time"));
  EXPECT_THAT(straggler_cause({.span = 10, .on_cpu = 9, .ready = 0.5, .in_operations = 0.5}),
              HasSubstr("it computes longer"));
  // Several threads use more than the span.
  EXPECT_THAT(straggler_cause({.span = 10, .on_cpu = 38, .ready = 0.5, .in_operations = 1}),
              HasSubstr("it computes longer"));
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

std::string said_about(const std::string& how) {
  PacelineProcess paceline(
      {"run", "--nproc-per-node", "3", "--straggler-after", "2", RECORDED_PROGRAM, how});
  paceline.wait_for_lines("waiting", 1);
  std::this_thread::sleep_for(8s);
  paceline.send(SIGTERM);
  return paceline.wait().err;
}

TEST(StragglerWatch, a_rank_that_sleeps_before_each_operation_is_said_to_wait_for_data) {
  const std::string text = said_about("sleeps");
  EXPECT_THAT(text, HasSubstr("paceline: rank 1 keeps the others waiting: it came last to "));
  EXPECT_THAT(text, HasSubstr("probable cause: it waits for something else, such as data"));
  EXPECT_EQ(text.find("keeps the others"), text.rfind("keeps the others"));
}

// Whatever else runs on this machine may hold one of them up, but then that is what is said.
TEST(StragglerWatch, equal_ranks_have_none_of_their_own_making) {
  EXPECT_THAT(said_about("counts"), AnyOf(Not(HasSubstr("keeps the others waiting")),
                                          HasSubstr("probable cause: other load on its cpus"),
                                          HasSubstr("probable cause: throttled")));
}

}  // namespace
}  // namespace paceline::launch
