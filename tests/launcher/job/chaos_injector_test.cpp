#include "paceline/launcher/job/chaos_injector.h"

#include <csignal>

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "paceline/engine/core/system/fd.h"

namespace paceline::launcher {
namespace {

using testing::ElementsAre;
using testing::Pair;

TEST(ChaosInjector, counts_the_faults_that_hit_a_rank_of_this_node) {
  const Fd nothing(open("/dev/null", O_WRONLY | O_CLOEXEC));
  EventLoop loop;
  Consoles consoles(loop, -1, nothing.get(), nothing.get());
  const JobFlights flights({{"PACELINE_FLIGHT_DIR", ""}}, "");
  ChaosInjector chaos(parse_faults("kill:rank=1,stop:rank=0,kill:rank=9"), 7, consoles, flights);
  std::vector<std::pair<int, int>> sent;
  std::vector<std::pair<int, std::string>> struck;
  const ChaosInjector::Ranks ranks{2,
                                   [&](int rank, int signal) {
                                     sent.emplace_back(rank, signal);
                                     return true;
                                   },
                                   [&](int rank, const std::string& because) {
                                     struck.emplace_back(rank, because);
                                     return rank < 2;
                                   }};
  EXPECT_TRUE(chaos.next_deadline(true).expired());
  chaos.tend(ranks);
  EXPECT_THAT(sent, ElementsAre(Pair(0, SIGSTOP)));
  EXPECT_THAT(struck, ElementsAre(Pair(1, "killed by --chaos"), Pair(9, "killed by --chaos")));
  EXPECT_EQ(chaos.summary(),
            "2 (kill 1, stop 1), seed 7; --chaos names ranks that the job never had: 9");
  EXPECT_FALSE(chaos.next_deadline(true).expired());  // the stopped rank continues after 5 s
}

TEST(ChaosInjector, names_a_step_that_a_rank_of_this_node_never_reported) {
  EventLoop loop;
  Consoles consoles(loop);
  const JobFlights flights({{"PACELINE_FLIGHT_DIR", ""}}, "");
  ChaosInjector chaos(parse_faults("kill:rank=1@step50,kill:rank=2@step9"), 7, consoles, flights);
  chaos.tend({3, [](int rank, int /*signal*/) { return rank < 2; },
              [](int /*rank*/, const std::string& /*because*/) { return true; }});
  EXPECT_EQ(chaos.summary(),
            "0, seed 7; no fault at step 50 of rank 1, which reported no steps: "
            "DistributedDataParallel and TrainingRun report them, other programs need a StepLog");
}

TEST(ChaosInjector, without_faults_does_nothing) {
  EventLoop loop;
  Consoles consoles(loop);
  const JobFlights flights({{"PACELINE_FLIGHT_DIR", ""}}, "");
  ChaosInjector chaos({}, 7, consoles, flights);
  chaos.tend({});
  EXPECT_EQ(chaos.summary(), "");
}

}  // namespace
}  // namespace paceline::launcher
