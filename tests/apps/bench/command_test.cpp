// `paceline bench` as people type it.

#include <csignal>
#include <filesystem>
#include <fstream>
#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/harness/says.h"
#include "tests/launcher/launch/paceline_process.h"

namespace paceline::bench {
namespace {

using harness::Says;
using launcher::Outcome;
using launcher::run_paceline;
using testing::HasSubstr;

std::string content(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

Outcome bench(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), "bench");
  return run_paceline(std::move(arguments));
}

TEST(BenchCommandTest, measures_and_writes_its_files) {
  const FreshDirectory directory;
  const Outcome outcome =
      bench({"all_reduce", "--np", "2", "--sizes", "4K,64K", "--dtype", "float32", "--check",
             "--rounds", "2", "--calls", "5", "--json", directory.file("j"), "--csv",
             directory.file("c"), "--html", directory.file("h")});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, Says("bench.heading", "all_reduce", "float32", "in place", "2 ranks",
                                "2 rounds, checked"));
  EXPECT_THAT(outcome.out, HasSubstr("64 KiB  paceline, symmetric"));
  EXPECT_THAT(outcome.out, Says("bench.columns_of_percentiles"));
  const auto json = nlohmann::json::parse(content(directory.file("j")));
  EXPECT_THAT(json["command"], testing::StartsWith("paceline bench all_reduce --np 2 --sizes 4K,"));
  EXPECT_THAT(json["paceline_version"], testing::StartsWith("paceline "));
  ASSERT_EQ(json["rows"].size(), 2u);
  for (const auto& row : json["rows"]) {
    EXPECT_EQ(row["peer"], "paceline");
    EXPECT_EQ(row["operation"], "all_reduce");
    EXPECT_EQ(row["ranks"], 2);
    EXPECT_EQ(row["rounds"], 2);
    EXPECT_EQ(row["checked"], true);
    EXPECT_GT(row["median"].get<double>(), 0);
    EXPECT_GE(row["p95"].get<double>(), row["median"].get<double>());
    EXPECT_GT(row["algbw"].get<double>(), 0);
    EXPECT_DOUBLE_EQ(row["busbw"].get<double>(), row["algbw"].get<double>());  // equal for 2 ranks
  }
  EXPECT_EQ(json["rows"][1]["bytes"], 65536);
  EXPECT_THAT(content(directory.file("c")), HasSubstr("paceline,all_reduce,float32,in,symmetric"));
  EXPECT_THAT(content(directory.file("h")), HasSubstr("</html>"));
}

TEST(BenchCommandTest, sizes_that_are_rounded_to_the_same_call_are_one_row) {
  const FreshDirectory directory;
  const Outcome outcome = bench({"all_reduce", "--np", "2", "--sizes", "5,8,12", "--rounds", "1",
                                 "--calls", "2", "--json", directory.file("j")});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const auto rows = nlohmann::json::parse(content(directory.file("j")))["rows"];
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[0]["bytes"], 8);
  EXPECT_EQ(rows[1]["bytes"], 12);
  EXPECT_THAT(outcome.err, Says("bench.size_rounded_up", 5, "all_reduce", 8));
}

TEST(BenchCommandTest, a_minus_is_standard_output_which_then_has_nothing_else) {
  const Outcome outcome = bench(
      {"all_reduce", "--np", "2", "--sizes", "4K", "--rounds", "1", "--calls", "2", "--json", "-"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(nlohmann::json::parse(outcome.out)["rows"].size(), 1u);
  EXPECT_THAT(outcome.err, Says("bench.columns_of_percentiles"));
  EXPECT_FALSE(std::filesystem::exists("-"));
  const Outcome simulated =
      bench({"all_reduce", "--simulate", "hosts=2,ranks=1", "--sizes", "4K", "--json", "-"});
  ASSERT_EQ(simulated.exit_code, 0) << simulated.err;
  EXPECT_TRUE(nlohmann::json::accept(simulated.out)) << simulated.out;
}

TEST(BenchCommandTest, files_do_not_overwrite_each_other) {
  const FreshDirectory directory;
  const auto one = directory.file("f");
  for (const auto& other : {one, directory.file("./f")}) {
    const Outcome outcome = bench({"all_reduce", "--sizes", "4K", "--json", one, "--csv", other});
    EXPECT_EQ(outcome.exit_code, 2) << outcome.out;
    EXPECT_THAT(outcome.err, Says("bench.same_file", "--json", "--csv"));
  }
  EXPECT_FALSE(std::filesystem::exists(one));
}

TEST(BenchCommandTest, operations_may_stand_anywhere) {
  const Outcome outcome = bench({"barrier", "--np", "2", "broadcast", "--sizes", "8", "--rounds",
                                 "1", "--calls", "2", "all_gather,broadcast"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const auto barrier = outcome.out.find("barrier, 2 ranks");
  const auto broadcast = outcome.out.find("broadcast, float32");
  const auto all_gather = outcome.out.find("all_gather, float32, out of place");
  EXPECT_LT(barrier, broadcast);
  EXPECT_LT(broadcast, all_gather);
  EXPECT_NE(all_gather, std::string::npos);
}

TEST(BenchCommandTest, the_yardsticks_are_measured_with_a_peer) {
  const Outcome outcome = bench({"all_reduce", "--np", "2", "--sizes", "64K", "--check", "--rounds",
                                 "1", "--calls", "3", "--peer", "limit"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("limit  "));
  EXPECT_THAT(outcome.out, HasSubstr("memcpy  "));
  EXPECT_THAT(outcome.err, testing::AnyOf("", Says("bench.noisy")));
}

// Every library that was built must start. A missing library is reported; a crash is a defect.
TEST(BenchCommandTest, every_peer_that_was_built_starts_and_is_right) {
  const Outcome outcome = bench({"all_reduce", "--np", "2", "--sizes", "4K", "--check", "--rounds",
                                 "1", "--calls", "2", "--peer", "all"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.err, testing::Not(Says("bench.peer_did_not_start")));
  EXPECT_THAT(outcome.err, testing::Not(HasSubstr("signal")));
}

// There are enough calls for the limit to try each of its variants of an operation.
TEST(BenchCommandTest, the_limit_gives_right_results_of_every_operation_that_it_knows) {
  const Outcome outcome =
      bench({"all_reduce,reduce_scatter,all_gather,broadcast,all_to_all", "--np", "2", "--sizes",
             "8,4K,5000,64K,1M", "--rounds", "8", "--calls", "2", "--peer", "limit", "--check"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("limit"));
  EXPECT_THAT(outcome.err, testing::Not(Says("bench.peer_lacks")));
  EXPECT_THAT(outcome.err, testing::Not(Says("bench.wrong_result")));
}

TEST(BenchCommandTest, the_limit_is_measured_only_where_it_has_a_part) {
  const Outcome outcome = bench({"all_reduce", "--np", "3", "--sizes", "4K", "--rounds", "1",
                                 "--calls", "2", "--peer", "memcpy"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, testing::Not(HasSubstr("limit")));
  EXPECT_THAT(outcome.err, testing::Not(HasSubstr("limit")));
  const Outcome asked = bench({"all_reduce", "--np", "3", "--sizes", "4K", "--rounds", "1",
                               "--calls", "2", "--peer", "limit"});
  ASSERT_EQ(asked.exit_code, 0) << asked.err;
  EXPECT_THAT(asked.err, Says("bench.limit_not_measured"));
  const Outcome among_all = bench({"all_reduce", "--np", "2", "--sizes", "4K", "--rounds", "1",
                                   "--calls", "2", "--dtype", "bfloat16", "--peer", "all"});
  ASSERT_EQ(among_all.exit_code, 0) << among_all.err;
  EXPECT_THAT(among_all.err, Says("bench.limit_not_measured"));
}

TEST(BenchCommandTest, ranks_of_a_launcher_do_not_measure_each_for_itself) {
  const Outcome outcome = run_paceline(
      {"run", "--nproc-per-node", "2", PACELINE_COMMAND, "bench", "all_reduce", "--sizes", "4K"});
  EXPECT_EQ(outcome.exit_code, 2);
  const auto refused = [](int rank, const char* launcher, const char* command) {
    return Says("bench.ranks_of_a_launcher", rank, 2, launcher, "ranks", command);
  };
  const char* const command = "paceline bench all_reduce --sizes 4K --nproc-per-node 2.";
  EXPECT_THAT(outcome.err, testing::AnyOf(refused(0, "paceline run", command),
                                          refused(1, "paceline run", command)));
  EXPECT_THAT(outcome.out, testing::Not(Says("bench.columns_of_percentiles")));
  const Outcome mpi = run_paceline({"bench", "barrier", "--np", "2"},
                                   {{"OMPI_COMM_WORLD_RANK", "1"}, {"OMPI_COMM_WORLD_SIZE", "2"}});
  EXPECT_EQ(mpi.exit_code, 2);
  EXPECT_THAT(mpi.err, refused(1, "mpirun", "paceline bench barrier --np 2."));
  const Outcome alone = run_paceline({"bench", "barrier", "--np", "2", "--rounds", "1"},
                                     {{"RANK", "0"}, {"WORLD_SIZE", "1"}});
  EXPECT_EQ(alone.exit_code, 0) << alone.err;
}

// Rows named Paceline measure the engine, whatever the variables say. Variables that stay in effect
// are reported.
TEST(BenchCommandTest, variables_that_change_the_measurement_are_cleared_or_named) {
  const FreshDirectory directory;
  const Outcome outcome =
      run_paceline({"bench", "all_reduce", "--np", "2", "--sizes", "4K", "--rounds", "1", "--calls",
                    "2", "--json", directory.file("j")},
                   {{"PACELINE_BACKEND", "gloo"},
                    {"PACELINE_TIMELINE_DIR", directory.file("traces")},
                    {"PACELINE_TRANSPORT", "tcp"},
                    {"PACELINE_ENCRYPT", "1"}});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const auto variables =
      Says("bench.variables", "PACELINE_TRANSPORT=tcp, PACELINE_ENCRYPT=1",
           "PACELINE_BACKEND=gloo, PACELINE_TIMELINE_DIR=" + directory.file("traces"));
  EXPECT_THAT(outcome.out, testing::AllOf(Says("bench.environment", "with "), variables));
  EXPECT_THAT(outcome.out, Says("bench.own_transport", "tcp"));
  const auto json = nlohmann::json::parse(content(directory.file("j")));
  EXPECT_THAT(json["variables"].get<std::string>(), variables);
  EXPECT_FALSE(std::filesystem::exists(directory.file("traces")));
  // An option overrides the variable, and is not reported as a variable.
  const Outcome shm =
      run_paceline({"bench", "barrier", "--np", "2", "--rounds", "1", "--transport", "shm"},
                   {{"PACELINE_TRANSPORT", "tcp"}});
  EXPECT_THAT(shm.out, Says("bench.own_transport", "shm"));
  EXPECT_THAT(shm.out, testing::Not(Says("bench.environment")));
}

TEST(BenchCommandTest, an_algorithm_is_measured_over_messages) {
  const Outcome outcome =
      bench({"all_reduce,all_to_all", "--np", "2", "--sizes", "4K", "--rounds", "1", "--calls", "2",
             "--transport", "tcp", "--algorithm", "ring", "--check"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, Says("bench.own_transport", "tcp, algorithm ring"));
  EXPECT_THAT(outcome.err, Says("bench.algorithm_serves_not_all", "ring", "all_to_all"));
}

TEST(BenchCommandTest, a_placement_holds_where_it_can) {
  for (const auto& [placement, meaning] : {std::pair{"in", "in place"}, {"out", "out of place"}}) {
    const Outcome outcome = bench({"all", "--np", "2", "--sizes", "4K", "--rounds", "1", "--calls",
                                   "2", "--placement", placement});
    ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
    EXPECT_THAT(outcome.out, Says("bench.heading", "all_reduce", "float32", meaning));
    EXPECT_THAT(outcome.out, Says("bench.heading", "broadcast", "float32", "in place"));
    EXPECT_THAT(outcome.out, Says("bench.heading", "all_to_all", "float32", "out of place"));
    EXPECT_THAT(outcome.err, Says("bench.placement_not_everywhere", placement));
  }
}

TEST(BenchCommandTest, one_rank_and_one_round_are_singular) {
  const Outcome outcome =
      bench({"all_reduce", "--np", "1", "--sizes", "4K", "--rounds", "1", "--calls", "2"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out,
              Says("bench.heading", "all_reduce", "float32", "in place", "1 rank", "1 round\n"));
  EXPECT_THAT(outcome.out, Says("bench.rank_alone"));
}

// After Ctrl-C the rows that were measured until then are written.
TEST(BenchCommandTest, measurements_before_an_interruption_are_written) {
  const FreshDirectory directory;
  launcher::PacelineProcess process(std::vector<std::string>{
      "bench", "all_reduce", "--np", "2", "--sizes", "4K,32M", "--rounds", "100", "--calls", "1",
      "--json", directory.file("j"), "--csv", directory.file("c")});
  process.wait_for_lines("   4 KiB", 1);
  process.send(SIGINT);
  const Outcome outcome = process.wait();
  EXPECT_EQ(outcome.exit_code, 130);
  EXPECT_THAT(outcome.err, Says("bench.interrupted", "1 of 2 points"));
  const auto json = nlohmann::json::parse(content(directory.file("j")));
  ASSERT_EQ(json["rows"].size(), 1u);
  EXPECT_EQ(json["rows"][0]["rounds"], 100);
  EXPECT_THAT(json["notes"].dump(), Says("bench.interrupted"));
  EXPECT_THAT(content(directory.file("c")), HasSubstr("paceline,all_reduce"));
}

// The results are checked, so every contestant must carry out the operation that its row names.
TEST(BenchCommandTest, peers_take_part_in_what_they_have) {
  const Outcome outcome =
      bench({"all_gather_v,reduce_scatter_v,all_to_all_v,all_reduce_coalesced,send_recv", "--np",
             "2", "--sizes", "8,64K", "--check", "--rounds", "1", "--calls", "2", "--peer", "all"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.err, testing::Not(Says("bench.wrong_result")));
  EXPECT_THAT(outcome.err, testing::Not(Says("bench.peer_left_out")));
  EXPECT_THAT(outcome.out,
              Says("bench.heading", "all_gather_v, equal counts", "float32", "out of place"));
  EXPECT_THAT(outcome.out,
              Says("bench.heading", "all_reduce_coalesced of 64 buffers", "float32", "in place"));
  EXPECT_THAT(outcome.out, Says("bench.heading", "send_recv", "float32", "out of place"));
  if (outcome.out.find("openmpi: ") != std::string::npos) {
    EXPECT_THAT(outcome.err, Says("bench.peer_lacks", "Open MPI", "all_reduce_coalesced"));
  }
}

// An installation with Paceline's own contestant and no other.
TEST(BenchCommandTest, a_missing_peer_is_named_with_its_package) {
  const FreshDirectory directory;
  namespace fs = std::filesystem;
  fs::create_directories(directory.file("bin"));
  fs::create_directories(directory.file("libexec/paceline"));
  fs::copy_file(PACELINE_COMMAND, directory.file("bin/paceline"));
  fs::create_symlink(PACELINE_CONTESTANT, directory.file("libexec/paceline/bench-paceline"));
  launcher::PacelineProcess process({"bench", "all_reduce", "--np", "2", "--sizes", "8", "--rounds",
                                     "1", "--calls", "2", "--peer", "mpich,gloo"},
                                    {}, directory.file("bin/paceline"));
  const Outcome outcome = process.wait();
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.err, Says("bench.peer_not_built", "MPICH"));
  EXPECT_THAT(outcome.err, HasSubstr("apt-get install mpich libmpich-dev"));
  EXPECT_THAT(outcome.err, HasSubstr("apt-get install libgloo-dev"));
  EXPECT_THAT(outcome.out, HasSubstr("paceline, symmetric"));
}

struct Refusal {
  std::vector<std::string> arguments;
  harness::SaysMatcher says;
};
class BenchRefuses : public testing::TestWithParam<Refusal> {};

TEST_P(BenchRefuses, with_exit_code_2) {
  const Outcome outcome = bench(GetParam().arguments);
  EXPECT_EQ(outcome.exit_code, 2) << outcome.err;
  EXPECT_THAT(outcome.err, GetParam().says);
  EXPECT_EQ(outcome.out, "");
}

INSTANTIATE_TEST_SUITE_P(
    Arguments, BenchRefuses,
    testing::Values(
        Refusal{{}, Says("bench.no_operation")},
        Refusal{{"all_redcue"}, Says("option.not_one_of", "operation", "all_redcue", "all_reduce")},
        Refusal{{"all_redcue"}, Says("option.did_you_mean", "all_reduce")},
        Refusal{{"all_reduce,"}, Says("option.not_one_of", "operation", "")},
        Refusal{{"all_reduce", "--np", "0"}, Says("cli.not_whole", "--nproc-per-node", 0, 1, 256)},
        Refusal{{"all_reduce", "--nproc-per-node", "0"},
                Says("cli.not_whole", "--nproc-per-node", 0, 1, 256)},
        Refusal{{"all_reduce", "-n", "2"}, Says("cli.option_meant", "-n", "--nproc-per-node")},
        Refusal{{"all_reduce", "--np", "257"}, Says("cli.not_whole", "--nproc-per-node", 257)},
        Refusal{{"all_reduce", "--np", "two"}, Says("cli.not_whole", "--nproc-per-node", "two")},
        Refusal{{"all_reduce", "--np", "2", "--np", "x"},
                Says("cli.not_whole", "--nproc-per-node", "x")},
        Refusal{{"all_reduce", "--np", "2", "barrier", "--np", "x"},
                Says("cli.not_whole", "--nproc-per-node", "x")},
        Refusal{{"all_reduce", "--sizes", "4X"},
                Says("cli.value_refused", "--sizes", "4X", "a size")},
        Refusal{{"all_reduce", "--sizes", "2G"},
                Says("cli.value_refused", "--sizes", "2G", "a size")},
        Refusal{{"all_reduce", "--sizes", ""}, Says("cli.value_empty", "--sizes")},
        Refusal{{"all_reduce", "--dtype", "float"},
                Says("option.not_one_of", "--dtype", "float", "float32,")},
        Refusal{{"all_reduce", "--dtype", "flaot16"}, Says("option.did_you_mean", "float16")},
        Refusal{{"all_reduce", "--peer", "openmip"}, Says("option.did_you_mean", "openmpi")},
        Refusal{{"all_reduce", "--placement", "up"},
                Says("cli.value_refused", "--placement", "up", "in or out")},
        Refusal{{"all_to_all", "--placement", "in"},
                Says("bench.placement_refused", "in", "all_to_all", "out of place")},
        Refusal{{"broadcast", "--placement", "out"},
                Says("bench.placement_refused", "out", "broadcast", "in place")},
        Refusal{{"all_reduce", "--memory", "gpu"},
                Says("cli.value_refused", "--memory", "gpu", "symmetric")},
        Refusal{{"all_reduce", "--buffers", "hot"},
                Says("cli.value_refused", "--buffers", "hot", "fresh or warm")},
        Refusal{{"all_reduce", "--rounds", "0"}, Says("cli.not_whole", "--rounds", 0, 1)},
        Refusal{{"all_reduce", "--calls", "1e3"}, Says("cli.not_whole", "--calls", "1e3")},
        Refusal{{"all_reduce", "--timeout", "0"}, Says("cli.not_whole", "--timeout", 0, 1)},
        Refusal{{"all_reduce", "--peer", "mpi"},
                Says("option.not_one_of", "--peer", "mpi", "gloo, openmpi")},
        Refusal{{"all_reduce", "--peer", "paceline"},
                Says("option.not_one_of", "--peer", "paceline")},
        Refusal{{"all_reduce", "--transport", "rdma"},
                Says("cli.value_refused", "--transport", "rdma", "auto, shm")},
        Refusal{{"all_reduce", "--transport", "ucx"}, Says("bench.ucx_on_one_host")},
        Refusal{{"all_reduce", "--algorithm", "ring"}, Says("bench.algorithm_without_messages")},
        Refusal{{"all_reduce", "--transport", "tcp", "--algorithm", "hierarchy"},
                Says("bench.hierarchy_needs_hosts")},
        Refusal{{"all_reduce", "--json", "/no/such/folder/f"},
                Says("option.file_refused", "--json", "/no/such/folder/f", "No such file")},
        Refusal{{"all_reduce", "--size", "4K"}, Says("cli.option_meant", "--size", "--sizes")},
        Refusal{{"all_reduce", "--json"}, Says("cli.needs_value", "--json")}));

}  // namespace
}  // namespace paceline::bench
