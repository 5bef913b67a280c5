#include <cstdlib>

#include <gtest/gtest.h>

#include "paceline/engine/collectives/group/world_setup.h"

#include "tests/harness/thread_ranks.h"

namespace paceline {
namespace {

using namespace std::chrono_literals;

void on_hosts(const std::vector<std::string>& host_of,
              const std::function<void(ProcessGroup&)>& body) {
  harness::RanksOptions options;
  options.adjust = [&](int rank, GroupOptions& group) {
    group.link.host = host_of[static_cast<std::size_t>(rank)];
  };
  harness::run_ranks_ok(static_cast<int>(host_of.size()), body, options);
}

TEST(ClockOffset, of_one_clock_is_zero_within_its_own_error) {
  for (const auto& host_of : std::vector<std::vector<std::string>>{
           {"a", "b"}, {"a", "a", "b", "b"}, {"a", "b", "a", "c", "b"}}) {
    on_hosts(host_of, [&](ProcessGroup& group) {
      const ClockOffset clock = measure_clock_offset(group);
      const auto rank = static_cast<std::size_t>(group.rank());
      EXPECT_LE(std::abs(clock.offset.count()), clock.error.count()) << "rank " << rank;
      EXPECT_EQ(clock.error == 0ns, host_of[rank] == host_of[0]) << "rank " << rank;
      EXPECT_LT(clock.error, 10s);
    });
  }
}

TEST(ClockOffset, needs_nothing_on_one_host) {
  harness::run_ranks_ok(
      3, [](ProcessGroup& group) { EXPECT_EQ(measure_clock_offset(group).error, 0ns); });
}

}  // namespace
}  // namespace paceline
