// The planning modes of `paceline bench`, as people type them.

#include <cstdlib>
#include <fstream>
#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "paceline/engine/collectives/selection/calibration.h"

#include "tests/harness/says.h"
#include "tests/launcher/launch/paceline_process.h"

namespace paceline::bench {
namespace {

using harness::Says;
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
  EXPECT_THAT(outcome.out, Says("calibration.link_not_measured", "network"));
  EXPECT_THAT(outcome.out, HasSubstr(costs_));
  const auto costs = load_calibration(costs_);
  ASSERT_TRUE(costs);
  EXPECT_THAT(outcome.out, Says("calibration.made", costs->origin, "2 ranks", "1 host"));
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

// It depends on the machine whether the new calibration is kept.
TEST_F(BenchPlanningTest, replaces_a_calibration_only_by_a_steady_one) {
  CostModel known;
  known.origin = "a quiet box of 2026-01-02";
  save_calibration(known, costs_);
  const Outcome outcome = bench({"--calibrate", "--np", "2"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, Says("calibration.spread"));
  const CostModel now = load_calibration(costs_).value();
  if (!testing::Value(outcome.out, Says("calibration.not_kept"))) {
    EXPECT_THAT(outcome.out, Says("calibration.kept", costs_));
    EXPECT_LE(now.spread, kSteadySpread);
    EXPECT_NE(now.origin, known.origin);
  } else {
    EXPECT_THAT(outcome.out, HasSubstr(known.origin));
    EXPECT_EQ(now, known);
  }
}

TEST_F(BenchPlanningTest, measures_again_where_a_calibration_cannot_be_read) {
  std::ofstream(costs_) << "nonsense";
  const Outcome outcome = bench({"--calibrate", "--np", "2"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, Says("doctor.calibration_unreadable", costs_));
  EXPECT_TRUE(load_calibration(costs_));
}

TEST_F(BenchPlanningTest, is_about_all_reduce_where_nothing_is_said) {
  const Outcome outcome = bench({"--simulate", "hosts=64,ranks=8,link=25Gbit", "--sizes", "1M"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, Says("simulate.cluster", "64 hosts", "8 ranks", 25));
  EXPECT_THAT(outcome.out, Says("simulate.heading", "all_reduce", "float32", 512));
}

TEST_F(BenchPlanningTest, says_when_a_calibration_cannot_be_read_or_written) {
  std::ofstream(costs_) << "nonsense";
  const Outcome unreadable = bench({"all_reduce", "--simulate", "hosts=2"});
  EXPECT_NE(unreadable.exit_code, 0);
  EXPECT_THAT(unreadable.err, Says("doctor.calibration_unreadable", costs_));
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
  EXPECT_THAT(outcome.out, Says("simulate.cluster", "64 hosts", "8 ranks", 25));
  EXPECT_THAT(outcome.out, Says("simulate.heading", "all_reduce", "float32", 512));
  EXPECT_THAT(outcome.out, Says("simulate.heading", "broadcast", "float32", 512));
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
  EXPECT_THAT(here.out, Says("planner.in_shared_memory", "2 ranks"));
  const Outcome tcp = bench({"all_reduce", "--explain", "--np", "3", "--sizes", "1M", "--transport",
                             "tcp", "--algorithm", "ring"});
  ASSERT_EQ(tcp.exit_code, 0) << tcp.err;
  EXPECT_THAT(tcp.out, Says("planner.algorithm_asked_for", "ring"));
}

TEST_F(BenchPlanningTest, measures_beside_the_prediction) {
  const Outcome outcome = bench({"all_reduce,all_gather", "--predict", "--np", "2", "--transport",
                                 "tcp", "--sizes", "64K", "--calls", "5"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, Says("predict.columns"));
  EXPECT_THAT(outcome.out, Says("simulate.heading", "all_gather", "float32", 2));
  EXPECT_THAT(outcome.out, HasSubstr("%"));
  const Outcome shm = bench({"all_reduce", "--predict", "--np", "2", "--sizes", "64K"});
  EXPECT_NE(shm.exit_code, 0);
  EXPECT_THAT(shm.err, Says("predict.in_shared_memory", "shm"));
}

TEST_F(BenchPlanningTest, works_under_a_launcher) {
  const Outcome outcome =
      run_paceline({"run", "--nproc-per-node", "2", PACELINE_COMMAND, "bench", "all_reduce",
                    "--predict", "--transport", "tcp", "--sizes", "4K", "--calls", "3"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, Says("predict.group", "2 ranks", "1 host", "tcp"));
}

TEST_F(BenchPlanningTest, refuses_options_that_mean_nothing_there) {
  const auto refusal = [&](std::vector<std::string> arguments) {
    const Outcome outcome = bench(std::move(arguments));
    EXPECT_EQ(outcome.exit_code, 2);
    return outcome.err;
  };
  EXPECT_THAT(refusal({"all_reduce", "--calibrate"}),
              Says("bench.no_meaning", "an operation", "--calibrate"));
  EXPECT_THAT(refusal({"--calibrate", "--np", "1"}), Says("calibration.one_rank"));
  EXPECT_THAT(refusal({"all_reduce", "--keep-noisy"}), Says("bench.no_meaning", "--keep-noisy"));
  EXPECT_THAT(refusal({"all_reduce", "--simulate", "hosts=2", "--np", "2"}),
              Says("bench.no_meaning", "--nproc-per-node", "--simulate"));
  EXPECT_THAT(refusal({"all_reduce", "--simulate", "hosts=x"}),
              Says("setting.no_number", "--simulate: hosts", "x"));
  EXPECT_THAT(refusal({"all_reduce", "--peer", "gloo", "--explain"}),
              Says("bench.no_meaning", "--peer", "--explain"));
  EXPECT_THAT(refusal({"all_reduce", "--explain", "--algorithm", "best"}),
              Says("option.not_one_of", "--algorithm", "best", "direct, one_shot"));
  EXPECT_THAT(refusal({"send_recv", "--simulate", "hosts=2"}),
              Says("bench.operation_not_planned", "send_recv"));
  EXPECT_THAT(refusal({"--predict"}), Says("bench.no_operation"));
  EXPECT_THAT(
      refusal({"all_reduce", "--simulate", "hosts=4", "--algorithm", "bruck"}),
      Says("bench.algorithm_serves_nothing", "bruck", "all_reduce", "direct, one_shot, doubling"));
  EXPECT_THAT(refusal({"all_to_all", "--explain", "--algorithm", "ring"}),
              Says("bench.algorithm_serves_nothing", "ring", "all_to_all", "direct, bruck"));
  EXPECT_THAT(refusal({"--simulate", "hosts=4,ranks=1", "--algorithm", "hierarchy"}),
              Says("bench.hierarchy_needs_hosts"));
  EXPECT_THAT(refusal({"--simulate", "hosts=1,ranks=2"}),
              Says("simulate.one_host", "all_reduce", 2));
  EXPECT_THAT(refusal({"--simulate", "hosts=1,ranks=1"}), Says("simulate.single_rank"));
  EXPECT_THAT(refusal({"--simulate", "hosts=2", "--transport", "shm"}),
              Says("simulate.messages_only", "shm"));
}

TEST_F(BenchPlanningTest, says_when_an_algorithm_or_transport_would_not_be_taken) {
  const Outcome shm = bench({"all_reduce", "--explain", "--np", "2", "--algorithm", "ring"});
  EXPECT_NE(shm.exit_code, 0);
  EXPECT_THAT(shm.err, Says("bench.algorithm_beside_shared_memory"));
  const Outcome ucx = bench({"all_reduce", "--explain", "--np", "2", "--transport", "ucx"});
  EXPECT_NE(ucx.exit_code, 0);
  EXPECT_THAT(ucx.err, HasSubstr("ucx"));
  const Outcome partly = bench(
      {"all_reduce,all_to_all", "--simulate", "hosts=4", "--sizes", "4K", "--algorithm", "ring"});
  EXPECT_EQ(partly.exit_code, 0) << partly.err;
  EXPECT_THAT(partly.err, Says("bench.algorithm_serves_not_all", "ring", "all_to_all"));
}

TEST_F(BenchPlanningTest, simulates_one_host_only_without_its_shared_memory) {
  const Outcome outcome =
      bench({"--simulate", "hosts=1,ranks=2", "--transport", "tcp", "--sizes", "1M"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, Says("simulate.tcp_inside_hosts"));
  const Outcome hosts =
      bench({"--simulate", "hosts=4,ranks=2", "--transport", "tcp", "--explain", "--sizes", "1M"});
  EXPECT_THAT(hosts.out, testing::Not(HasSubstr("hierarchy")));
}

TEST_F(BenchPlanningTest, simulates_hosts_of_a_thousand_ranks_in_parts) {
  const Outcome outcome =
      bench({"all_to_all", "--simulate", "hosts=4,ranks=1024", "--sizes", "1M"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, testing::Not(Says("simulate.too_long")));
}

// With one rank on each host the simulation cannot be divided into parts, and chunks differ in
// size.
TEST_F(BenchPlanningTest, fails_when_the_chosen_algorithm_is_not_simulated) {
  const Outcome outcome =
      bench({"all_reduce", "--simulate", "hosts=3000", "--sizes", "1M", "--algorithm", "direct"});
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_THAT(outcome.out, Says("simulate.too_long", "3000 ranks"));
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
  EXPECT_THAT(np.err, Says("bench.other_number_of_ranks", 4, "paceline run", "2 ranks"));
}

TEST_F(BenchPlanningTest, tells_of_noisy_costs_wherever_they_are_used) {
  CostModel noisy;
  noisy.origin = "a busy box of 2026-01-02";
  noisy.spread = 1.05;
  save_calibration(noisy, costs_);
  const auto told = Says("calibration.noisy", noisy.origin, 105);
  EXPECT_THAT(bench({"--simulate", "hosts=2", "--sizes", "4K"}).out, told);
  EXPECT_THAT(bench({"all_reduce", "--explain", "--np", "2", "--transport", "tcp"}).out, told);
}

// Without an earlier calibration, the output of --calibrate depends on the machine.
TEST_F(BenchPlanningTest, a_first_calibration_is_kept_and_called_noisy_where_it_is) {
  const Outcome outcome = bench({"--calibrate", "--np", "2"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const bool is_noisy = load_calibration(costs_)->spread > kSteadySpread;
  EXPECT_EQ(testing::Value(outcome.out, Says("calibration.kept_noisy", costs_)), is_noisy);
}

}  // namespace
}  // namespace paceline::bench
