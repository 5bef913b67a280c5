// The planning modes of `paceline bench`, as people type them.

#include <cstdlib>
#include <fstream>
#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "paceline/engine/collectives/selection/calibration.h"

#include "tests/launcher/launch/paceline_process.h"

namespace paceline::bench {
namespace {

using launcher::Outcome;
using launcher::run_paceline;
using testing::HasSubstr;

class BenchPlanningTest : public testing::Test {
 protected:
  void SetUp() override { setenv("PACELINE_CALIBRATION", costs_.c_str(), 1); }
  void TearDown() override { unsetenv("PACELINE_CALIBRATION"); }

  static Outcome bench(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), "bench");
    return run_paceline(std::move(arguments));
  }

  const FreshDirectory directory_;
  const std::string costs_ = directory_.file("costs.json");
};

TEST_F(BenchPlanningTest, calibrates_once_for_later) {
  const Outcome outcome = bench({"--calibrate", "--np", "2"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("by 2 ranks on 1 host\n"));
  EXPECT_THAT(outcome.out, HasSubstr("(not measured here)"));  // the network
  EXPECT_THAT(outcome.out, HasSubstr(costs_));
  const auto costs = load_calibration(costs_);
  ASSERT_TRUE(costs);
  EXPECT_NE(costs->sockets, CostModel().sockets);
  EXPECT_EQ(costs->network, CostModel().network);
  const Outcome simulated = bench({"all_reduce", "--simulate", "hosts=2", "--sizes", "1K"});
  EXPECT_THAT(simulated.out, HasSubstr(costs->origin));
}

TEST_F(BenchPlanningTest, keeps_what_this_group_could_not_measure) {
  CostModel known;
  known.network.latency_s = 7e-6;
  save_calibration(known, costs_);
  ASSERT_EQ(bench({"--calibrate", "--np", "2", "--keep-noisy"}).exit_code, 0);
  EXPECT_EQ(load_calibration(costs_)->network, known.network);
  EXPECT_NE(load_calibration(costs_)->sockets, known.sockets);
}

// The machine decides which of the two happens.
TEST_F(BenchPlanningTest, replaces_a_calibration_only_by_a_steady_one) {
  CostModel known;
  known.origin = "a quiet box of 2026-01-02";
  save_calibration(known, costs_);
  const Outcome outcome = bench({"--calibrate", "--np", "2"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("repetitions differ by up to"));
  const CostModel now = load_calibration(costs_).value();
  if (outcome.out.find("not kept") == std::string::npos) {
    EXPECT_THAT(outcome.out, HasSubstr("kept in " + costs_));
    EXPECT_LE(now.spread, kSteadySpread);
    EXPECT_NE(now.origin, known.origin);
  } else {
    EXPECT_THAT(outcome.out, HasSubstr("--keep-noisy"));
    EXPECT_THAT(outcome.out, HasSubstr(known.origin));
    EXPECT_EQ(now, known);
  }
}

TEST_F(BenchPlanningTest, measures_again_where_a_calibration_cannot_be_read) {
  std::ofstream(costs_) << "nonsense";
  const Outcome outcome = bench({"--calibrate", "--np", "2"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("cannot be read"));
  EXPECT_TRUE(load_calibration(costs_));
}

TEST_F(BenchPlanningTest, is_about_all_reduce_where_nothing_is_said) {
  const Outcome outcome = bench({"--simulate", "hosts=64,ranks=8,link=25Gbit", "--sizes", "1M"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("64 hosts x 8 ranks, 25 Gbit/s"));
  EXPECT_THAT(outcome.out, HasSubstr("all_reduce"));
}

TEST_F(BenchPlanningTest, says_when_a_calibration_cannot_be_read_or_written) {
  std::ofstream(costs_) << "nonsense";
  const Outcome unreadable = bench({"all_reduce", "--simulate", "hosts=2"});
  EXPECT_NE(unreadable.exit_code, 0);
  EXPECT_THAT(unreadable.err, HasSubstr(costs_));
  setenv("PACELINE_CALIBRATION", "/proc/none/costs.json", 1);
  const Outcome unwritable = bench({"--calibrate", "--np", "2"});
  EXPECT_NE(unwritable.exit_code, 0);
  EXPECT_THAT(unwritable.err, HasSubstr("/proc/none/costs.json"));
}

TEST_F(BenchPlanningTest, simulates_a_cluster) {
  const Outcome outcome =
      bench({"all_reduce,broadcast", "--simulate", "hosts=64,ranks=8,link=25Gbit", "--sizes",
             "4K,64M", "--json", directory_.file("j")});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("64 hosts x 8 ranks, 25 Gbit/s"));
  EXPECT_THAT(outcome.out, HasSubstr("all_reduce, float32, 512 ranks"));
  EXPECT_THAT(outcome.out, HasSubstr("broadcast, float32, 512 ranks"));
  std::ostringstream text;
  text << std::ifstream(directory_.file("j")).rdbuf();
  const auto json = nlohmann::json::parse(text.str());
  ASSERT_EQ(json["rows"].size(), 4u);
  EXPECT_EQ(json["ranks"], 512);
  EXPECT_LT(json["rows"][0]["simulated"].get<double>(), json["rows"][1]["simulated"].get<double>());
}

TEST_F(BenchPlanningTest, explains_the_choice) {
  const Outcome simulated =
      bench({"all_reduce", "--simulate", "hosts=4,ranks=2", "--sizes", "1M", "--explain"});
  ASSERT_EQ(simulated.exit_code, 0) << simulated.err;
  EXPECT_THAT(simulated.out, HasSubstr("* hierarchy"));
  EXPECT_THAT(simulated.out, HasSubstr("halving"));
  const Outcome here = bench({"all_reduce", "--explain", "--np", "2", "--sizes", "1M"});
  ASSERT_EQ(here.exit_code, 0) << here.err;
  EXPECT_THAT(here.out, HasSubstr("among 2 ranks in shared memory"));
  const Outcome tcp = bench({"all_reduce", "--explain", "--np", "3", "--sizes", "1M", "--transport",
                             "tcp", "--algorithm", "ring"});
  ASSERT_EQ(tcp.exit_code, 0) << tcp.err;
  EXPECT_THAT(tcp.out, HasSubstr("* ring"));
  EXPECT_THAT(tcp.out, HasSubstr("asked for"));
}

TEST_F(BenchPlanningTest, measures_beside_the_prediction) {
  const Outcome outcome = bench({"all_reduce,all_gather", "--predict", "--np", "2", "--transport",
                                 "tcp", "--sizes", "64K", "--calls", "5"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("measured µs"));
  EXPECT_THAT(outcome.out, HasSubstr("all_gather, float32, 2 ranks"));
  EXPECT_THAT(outcome.out, HasSubstr("%"));
  const Outcome shm = bench({"all_reduce", "--predict", "--np", "2", "--sizes", "64K"});
  EXPECT_NE(shm.exit_code, 0);
  EXPECT_THAT(shm.err, HasSubstr("add --transport tcp"));
}

TEST_F(BenchPlanningTest, works_under_a_launcher) {
  const Outcome outcome =
      run_paceline({"run", "--nproc-per-node", "2", PACELINE_COMMAND, "bench", "all_reduce",
                    "--predict", "--transport", "tcp", "--sizes", "4K", "--calls", "3"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("2 ranks on 1 host, tcp"));
}

TEST_F(BenchPlanningTest, refuses_options_that_mean_nothing_there) {
  const auto refusal = [&](std::vector<std::string> arguments) {
    const Outcome outcome = bench(std::move(arguments));
    EXPECT_EQ(outcome.exit_code, 2);
    return outcome.err;
  };
  EXPECT_THAT(refusal({"all_reduce", "--calibrate"}),
              HasSubstr("an operation has no meaning with --calibrate"));
  EXPECT_THAT(refusal({"--calibrate", "--np", "1"}), HasSubstr("at least 2 ranks"));
  EXPECT_THAT(refusal({"all_reduce", "--keep-noisy"}), HasSubstr("--keep-noisy has no meaning"));
  EXPECT_THAT(refusal({"all_reduce", "--simulate", "hosts=2", "--np", "2"}),
              HasSubstr("--nproc-per-node has no meaning with --simulate"));
  EXPECT_THAT(refusal({"all_reduce", "--simulate", "hosts=x"}), HasSubstr("--simulate: hosts=x"));
  EXPECT_THAT(refusal({"all_reduce", "--peer", "gloo", "--explain"}),
              HasSubstr("--peer has no meaning with --explain"));
  EXPECT_THAT(refusal({"all_reduce", "--explain", "--algorithm", "best"}),
              HasSubstr("'best' is not one of direct, one_shot"));
  EXPECT_THAT(refusal({"send_recv", "--simulate", "hosts=2"}), HasSubstr("is measured only"));
  EXPECT_THAT(refusal({"--predict"}), HasSubstr("no operation given"));
  EXPECT_THAT(refusal({"all_reduce", "--simulate", "hosts=4", "--algorithm", "bruck"}),
              HasSubstr("'bruck' does not serve all_reduce: direct, one_shot, doubling"));
  EXPECT_THAT(refusal({"all_to_all", "--explain", "--algorithm", "ring"}),
              HasSubstr("'ring' does not serve all_to_all: direct, bruck"));
  EXPECT_THAT(refusal({"--simulate", "hosts=4,ranks=1", "--algorithm", "hierarchy"}),
              HasSubstr("hierarchy is for several hosts with several ranks"));
  EXPECT_THAT(
      refusal({"--simulate", "hosts=1,ranks=2"}),
      HasSubstr(
          "Measure it: paceline bench all_reduce --nproc-per-node 2; or add --transport tcp"));
  EXPECT_THAT(refusal({"--simulate", "hosts=1,ranks=1"}), HasSubstr("a single rank"));
  EXPECT_THAT(refusal({"--simulate", "hosts=2", "--transport", "shm"}),
              HasSubstr("only messages are simulated"));
}

TEST_F(BenchPlanningTest, says_when_an_algorithm_or_transport_would_not_be_taken) {
  const Outcome shm = bench({"all_reduce", "--explain", "--np", "2", "--algorithm", "ring"});
  EXPECT_NE(shm.exit_code, 0);
  EXPECT_THAT(shm.err, HasSubstr("add --transport tcp"));
  const Outcome ucx = bench({"all_reduce", "--explain", "--np", "2", "--transport", "ucx"});
  EXPECT_NE(ucx.exit_code, 0);
  EXPECT_THAT(ucx.err, HasSubstr("ucx"));
  const Outcome partly = bench(
      {"all_reduce,all_to_all", "--simulate", "hosts=4", "--sizes", "4K", "--algorithm", "ring"});
  EXPECT_EQ(partly.exit_code, 0) << partly.err;
  EXPECT_THAT(partly.err, HasSubstr("--algorithm ring does not serve all_to_all"));
}

TEST_F(BenchPlanningTest, simulates_one_host_only_without_its_shared_memory) {
  const Outcome outcome =
      bench({"--simulate", "hosts=1,ranks=2", "--transport", "tcp", "--sizes", "1M"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("over tcp inside a host, too"));
  const Outcome hosts =
      bench({"--simulate", "hosts=4,ranks=2", "--transport", "tcp", "--explain", "--sizes", "1M"});
  EXPECT_THAT(hosts.out, testing::Not(HasSubstr("hierarchy")));
}

TEST_F(BenchPlanningTest, simulates_hosts_of_a_thousand_ranks_in_parts) {
  const Outcome outcome =
      bench({"all_to_all", "--simulate", "hosts=4,ranks=1024", "--sizes", "1M"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, testing::Not(HasSubstr("million")));
}

// With one rank a host there are no parts, and chunks are not equal.
TEST_F(BenchPlanningTest, fails_when_the_chosen_algorithm_is_not_simulated) {
  const Outcome outcome =
      bench({"all_reduce", "--simulate", "hosts=3000", "--sizes", "1M", "--algorithm", "direct"});
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_THAT(outcome.out, HasSubstr("million steps"));
}

TEST_F(BenchPlanningTest, is_reported_once_under_a_launcher) {
  const Outcome outcome = run_paceline({"run", "--nproc-per-node", "2", PACELINE_COMMAND, "bench",
                                        "--simulate", "hosts=2", "--sizes", "4K"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const auto first = outcome.out.find("2 hosts x 1 rank,");
  ASSERT_NE(first, std::string::npos) << outcome.out;
  EXPECT_EQ(outcome.out.find("2 hosts x 1 rank,", first + 1), std::string::npos);
  const Outcome np = run_paceline({"run", "--nproc-per-node", "2", PACELINE_COMMAND, "bench",
                                   "all_reduce", "--explain", "--np", "4"});
  EXPECT_EQ(np.exit_code, 2);
  EXPECT_THAT(np.err,
              HasSubstr("--nproc-per-node: '4': paceline run started 2 ranks; leave it out"));
}

TEST_F(BenchPlanningTest, tells_of_noisy_costs_wherever_they_are_used) {
  CostModel noisy;
  noisy.origin = "a busy box of 2026-01-02";
  noisy.spread = 1.05;
  save_calibration(noisy, costs_);
  const char* const told = "a busy box of 2026-01-02, noisy (repetitions differed by up to 105%";
  EXPECT_THAT(bench({"--simulate", "hosts=2", "--sizes", "4K"}).out, HasSubstr(told));
  EXPECT_THAT(bench({"all_reduce", "--explain", "--np", "2", "--transport", "tcp"}).out,
              HasSubstr(told));
}

// Without an earlier calibration the output of --calibrate depends on the machine.
TEST_F(BenchPlanningTest, a_first_calibration_is_kept_and_called_noisy_where_it_is) {
  const Outcome outcome = bench({"--calibrate", "--np", "2"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const bool is_noisy = load_calibration(costs_)->spread > kSteadySpread;
  EXPECT_EQ(outcome.out.find("noisy as they are: measure again") != std::string::npos, is_noisy);
}

}  // namespace
}  // namespace paceline::bench
