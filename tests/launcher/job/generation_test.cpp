// Generations of real processes without the command around them. Nothing may grow with the number
// of generations.

#include "paceline/launcher/job/generation.h"

#include <csignal>
#include <fstream>
#include <memory>

#include <gtest/gtest.h>
#include <sys/wait.h>

#include "tests/harness/fresh_directory.h"
#include "tests/harness/open_descriptors.h"

namespace paceline::launcher {
namespace {

using namespace std::chrono_literals;

long resident_pages() {
  long total = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> total >> resident;
  return resident;
}

std::string children() {
  std::string pids;
  std::getline(std::ifstream("/proc/thread-self/children"), pids);
  return pids;
}

class GenerationTest : public testing::Test {
 protected:
  GenerationTest() {
    plan_.options.command = {"sleep", "1000"};
    plan_.options.num_local_ranks = 2;
    plan_.program_path = "/bin/sleep";
    plan_.placement = plan_placement(discover_topology(),
                                     {.num_local_ranks = 2, .binding = {.to = BindTo::kNone}});
  }

  // Starts a generation of two ranks with `services`.
  std::unique_ptr<Generation> start(int generation, JobServices& services) {
    const NodePlace place{.generation = generation, .world_size = 2};
    auto ranks =
        std::make_unique<Generation>(GenerationContext{plan_, loop_, consoles_, logs_, flights_,
                                                       memory_, timeline_, watch_, seeds_},
                                     place, services, -1);
    services.start_store();
    return ranks;
  }

  void wait_for_end(Generation& ranks) {
    const Deadline deadline = Deadline::after(20s);
    while (!ranks.over() && !deadline.expired()) {
      loop_.turn(Deadline::after(
          std::min(ranks.next_deadline().remaining(), std::chrono::nanoseconds(1s))));
      ranks.tend();
    }
    ASSERT_TRUE(ranks.over());
  }

  // Kills one rank and waits until nothing is left.
  void cycle(int generation) {
    JobServices services(plan_.options);
    const auto ranks = start(generation, services);
    ASSERT_TRUE(ranks->send_to(generation % 2, SIGKILL));
    wait_for_end(*ranks);
    ASSERT_TRUE(ranks->culprit());
    EXPECT_EQ(ranks->culprit()->rank, generation % 2);
    EXPECT_EQ(ranks->culprit()->signal, SIGKILL);
    EXPECT_EQ(ranks->followers().size(), 1u);
  }

  const FreshDirectory directory_;
  LaunchPlan plan_;
  EventLoop loop_;
  Consoles consoles_{loop_};
  LogDirectory logs_{directory_.path(), "job"};
  JobFlights flights_{{{"PACELINE_FLIGHT_DIR", ""}}, ""};
  const JobMemory memory_;
  JobTimeline timeline_{"", "", false};
  JobWatch watch_{loop_, plan_, {}, {}};
  RankSeeds seeds_{"/bin/sleep", false, {}};
};

// The other ranks learn of the death from a broken connection. Their order to stop may arrive
// before this launcher has noticed the death.
TEST_F(GenerationTest, a_rank_that_died_before_the_order_to_stop_is_the_culprit) {
  testing::internal::CaptureStderr();
  JobServices services(plan_.options);
  const auto ranks = start(1, services);
  ASSERT_TRUE(ranks->send_to(1, SIGKILL));
  siginfo_t ended{};
  ASSERT_EQ(waitid(P_ALL, 0, &ended, WEXITED | WNOWAIT), 0);
  ranks->look_for_deaths();
  ranks->stop(SIGTERM, 5s);
  wait_for_end(*ranks);
  testing::internal::GetCapturedStderr();
  ASSERT_TRUE(ranks->culprit());
  EXPECT_EQ(ranks->culprit()->rank, 1);
  EXPECT_EQ(ranks->culprit()->signal, SIGKILL);
}

TEST_F(GenerationTest, ranks_that_only_run_are_not_deaths) {
  JobServices services(plan_.options);
  const auto ranks = start(1, services);
  ranks->look_for_deaths();
  ranks->stop(SIGTERM, 5s);
  wait_for_end(*ranks);
  EXPECT_FALSE(ranks->culprit());
}

TEST_F(GenerationTest, a_thousand_kills_and_restarts_leave_no_descriptor_process_or_memory) {
  testing::internal::CaptureStderr();  // every kill prints a report
  for (int generation = 1; generation <= 20; ++generation) cycle(generation);
  const auto descriptors = num_descriptors();
  const long pages = resident_pages();
  for (int generation = 21; generation <= 1000 && !HasFatalFailure(); ++generation) {
    cycle(generation);
  }
  const auto descriptors_after = num_descriptors();
  testing::internal::GetCapturedStderr();
  EXPECT_EQ(descriptors_after, descriptors);
  EXPECT_LT(resident_pages() - pages, 5L << 20 >> 12);  // at most 5 MiB
  EXPECT_EQ(children(), "");
}

}  // namespace
}  // namespace paceline::launcher
