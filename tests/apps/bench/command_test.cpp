// `paceline bench` as people type it.

#include <csignal>
#include <filesystem>
#include <fstream>
#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/launcher/launch/paceline_process.h"

namespace paceline::bench {
namespace {

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
  EXPECT_THAT(outcome.out, HasSubstr("all_reduce, float32, in place, freshly written, 2 ranks"));
  EXPECT_THAT(outcome.out, HasSubstr("64 KiB  paceline, symmetric"));
  EXPECT_THAT(outcome.out, HasSubstr("p99 µs"));
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
    EXPECT_DOUBLE_EQ(row["busbw"].get<double>(), row["algbw"].get<double>());  // 2 ranks
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
  EXPECT_THAT(outcome.err, HasSubstr("--sizes: 5 B is not a whole number of elements"));
  EXPECT_THAT(outcome.err, HasSubstr("rounded up, here to 8 B"));
}

TEST(BenchCommandTest, a_minus_is_standard_output_which_then_has_nothing_else) {
  const Outcome outcome = bench(
      {"all_reduce", "--np", "2", "--sizes", "4K", "--rounds", "1", "--calls", "2", "--json", "-"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(nlohmann::json::parse(outcome.out)["rows"].size(), 1u);
  EXPECT_THAT(outcome.err, HasSubstr("p99 µs"));
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
    EXPECT_THAT(outcome.err, HasSubstr("--json and --csv name the same file"));
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
  EXPECT_THAT(outcome.err, testing::AnyOf("", testing::StartsWith("paceline bench: noisy")));
}

// Every library that was built must start: a missing one is reported as such, a crash is a defect.
TEST(BenchCommandTest, every_peer_that_was_built_starts_and_is_right) {
  const Outcome outcome = bench({"all_reduce", "--np", "2", "--sizes", "4K", "--check", "--rounds",
                                 "1", "--calls", "2", "--peer", "all"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.err, testing::Not(HasSubstr("did not start")));
  EXPECT_THAT(outcome.err, testing::Not(HasSubstr("signal")));
}

// The calls of a turn go through every way that the limit tries.
TEST(BenchCommandTest, the_limit_gives_right_results_of_every_operation_that_it_knows) {
  const Outcome outcome =
      bench({"all_reduce,reduce_scatter,all_gather,broadcast,all_to_all", "--np", "2", "--sizes",
             "8,4K,5000,64K,1M", "--rounds", "8", "--calls", "2", "--peer", "limit", "--check"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("limit"));
  EXPECT_THAT(outcome.err, testing::Not(HasSubstr("lacks")));
  EXPECT_THAT(outcome.err, testing::Not(HasSubstr("wrong")));
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
  EXPECT_THAT(asked.err, HasSubstr("limit: float32 and 2 ranks only"));
  const Outcome among_all = bench({"all_reduce", "--np", "2", "--sizes", "4K", "--rounds", "1",
                                   "--calls", "2", "--dtype", "bfloat16", "--peer", "all"});
  ASSERT_EQ(among_all.exit_code, 0) << among_all.err;
  EXPECT_THAT(among_all.err, HasSubstr("limit: float32 and 2 ranks only"));
}

TEST(BenchCommandTest, ranks_of_a_launcher_do_not_measure_each_for_itself) {
  const Outcome outcome = run_paceline(
      {"run", "--nproc-per-node", "2", PACELINE_COMMAND, "bench", "all_reduce", "--sizes", "4K"});
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("of 2 (paceline run), and bench starts ranks of its own"));
  EXPECT_THAT(outcome.err, HasSubstr("paceline bench all_reduce --sizes 4K --nproc-per-node 2."));
  EXPECT_THAT(outcome.out, testing::Not(HasSubstr("algbw")));
  const Outcome mpi = run_paceline({"bench", "barrier", "--np", "2"},
                                   {{"OMPI_COMM_WORLD_RANK", "1"}, {"OMPI_COMM_WORLD_SIZE", "2"}});
  EXPECT_EQ(mpi.exit_code, 2);
  EXPECT_THAT(mpi.err, HasSubstr("rank 1 of 2 (mpirun)"));
  EXPECT_THAT(mpi.err, HasSubstr("type it without the launcher: paceline bench barrier --np 2."));
  const Outcome alone = run_paceline({"bench", "barrier", "--np", "2", "--rounds", "1"},
                                     {{"RANK", "0"}, {"WORLD_SIZE", "1"}});
  EXPECT_EQ(alone.exit_code, 0) << alone.err;
}

// Rows under Paceline's name are the engine's, and other variables in effect are reported.
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
  const std::string line =
      "with PACELINE_TRANSPORT=tcp, PACELINE_ENCRYPT=1; without PACELINE_BACKEND=gloo, "
      "PACELINE_TIMELINE_DIR=" +
      directory.file("traces");
  EXPECT_THAT(outcome.out, HasSubstr("environment: " + line));
  EXPECT_THAT(outcome.out, HasSubstr("paceline: Paceline, tcp\n"));
  const auto json = nlohmann::json::parse(content(directory.file("j")));
  EXPECT_THAT(json["variables"], HasSubstr(line));
  EXPECT_FALSE(std::filesystem::exists(directory.file("traces")));
  // An option is stronger, and is not a variable.
  const Outcome shm =
      run_paceline({"bench", "barrier", "--np", "2", "--rounds", "1", "--transport", "shm"},
                   {{"PACELINE_TRANSPORT", "tcp"}});
  EXPECT_THAT(shm.out, HasSubstr("paceline: Paceline, shm\n"));
  EXPECT_THAT(shm.out, testing::Not(HasSubstr("environment:")));
}

TEST(BenchCommandTest, an_algorithm_is_measured_over_messages) {
  const Outcome outcome =
      bench({"all_reduce,all_to_all", "--np", "2", "--sizes", "4K", "--rounds", "1", "--calls", "2",
             "--transport", "tcp", "--algorithm", "ring", "--check"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("Paceline, tcp, algorithm ring"));
  EXPECT_THAT(outcome.err, HasSubstr("--algorithm ring does not serve all_to_all"));
}

TEST(BenchCommandTest, a_placement_holds_where_it_can) {
  for (const char* placement : {"in", "out"}) {
    const Outcome outcome = bench({"all", "--np", "2", "--sizes", "4K", "--rounds", "1", "--calls",
                                   "2", "--placement", placement});
    ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
    EXPECT_THAT(outcome.out, HasSubstr(std::string("all_reduce, float32, ") + placement));
    EXPECT_THAT(outcome.out, HasSubstr("broadcast, float32, in place"));
    EXPECT_THAT(outcome.out, HasSubstr("all_to_all, float32, out of place"));
    EXPECT_THAT(outcome.err, HasSubstr(std::string("--placement ") + placement + ": "));
  }
}

TEST(BenchCommandTest, one_rank_and_one_round_are_singular) {
  const Outcome outcome =
      bench({"all_reduce", "--np", "1", "--sizes", "4K", "--rounds", "1", "--calls", "2"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr(", 1 rank, 1 round\n"));
  EXPECT_THAT(outcome.out, HasSubstr("a rank alone"));
}

// Ctrl-C writes the rows that were measured until then.
TEST(BenchCommandTest, measurements_before_an_interruption_are_written) {
  const FreshDirectory directory;
  launcher::PacelineProcess process(std::vector<std::string>{
      "bench", "all_reduce", "--np", "2", "--sizes", "4K,1M", "--rounds", "1000", "--calls", "1",
      "--json", directory.file("j"), "--csv", directory.file("c")});
  process.wait_for_lines("   4 KiB", 1);
  process.send(SIGINT);
  const Outcome outcome = process.wait();
  EXPECT_EQ(outcome.exit_code, 130);
  EXPECT_THAT(outcome.err, HasSubstr("interrupted: 1 of 2 points measured"));
  const auto json = nlohmann::json::parse(content(directory.file("j")));
  ASSERT_EQ(json["rows"].size(), 1u);
  EXPECT_EQ(json["rows"][0]["rounds"], 1000);
  EXPECT_THAT(json["notes"].dump(), HasSubstr("interrupted"));
  EXPECT_THAT(content(directory.file("c")), HasSubstr("paceline,all_reduce"));
}

// Results are checked, so that each peer carries out the operation that its row names.
TEST(BenchCommandTest, peers_take_part_in_what_they_have) {
  const Outcome outcome =
      bench({"all_gather_v,reduce_scatter_v,all_to_all_v,all_reduce_coalesced,send_recv", "--np",
             "2", "--sizes", "8,64K", "--check", "--rounds", "1", "--calls", "2", "--peer", "all"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.err, testing::Not(HasSubstr("wrong")));
  EXPECT_THAT(outcome.err, testing::Not(HasSubstr("left out")));
  EXPECT_THAT(outcome.out, HasSubstr("all_gather_v, equal counts, float32, out of place"));
  EXPECT_THAT(outcome.out, HasSubstr("all_reduce_coalesced of 64 buffers, float32, in place"));
  EXPECT_THAT(outcome.out, HasSubstr("send_recv, float32, out of place"));
  if (outcome.out.find("openmpi: ") != std::string::npos) {
    EXPECT_THAT(outcome.err, HasSubstr("Open MPI has no all_reduce_coalesced"));
  }
}

// A command with Paceline's own contestant beside it, and no other.
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
  EXPECT_THAT(outcome.err, HasSubstr("missing: MPICH"));
  EXPECT_THAT(outcome.err, HasSubstr("apt-get install mpich libmpich-dev"));
  EXPECT_THAT(outcome.err, HasSubstr("apt-get install libgloo-dev"));
  EXPECT_THAT(outcome.out, HasSubstr("paceline, symmetric"));
}

struct Refusal {
  std::vector<std::string> arguments;
  std::string message;
};
class BenchRefuses : public testing::TestWithParam<Refusal> {};

TEST_P(BenchRefuses, with_exit_code_2) {
  const Outcome outcome = bench(GetParam().arguments);
  EXPECT_EQ(outcome.exit_code, 2) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr(GetParam().message));
  EXPECT_EQ(outcome.out, "");
}

INSTANTIATE_TEST_SUITE_P(
    Arguments, BenchRefuses,
    testing::Values(
        Refusal{{}, "no operation given"},
        Refusal{{"all_redcue"}, "operation: 'all_redcue' is not one of all_reduce"},
        Refusal{{"all_redcue"}, "did you mean all_reduce?"},
        Refusal{{"all_reduce,"}, "operation: '' is not one of"},
        Refusal{{"all_reduce", "--np", "0"},
                "--nproc-per-node: '0' is not a whole number from 1 to 256"},
        Refusal{{"all_reduce", "--nproc-per-node", "0"},
                "--nproc-per-node: '0' is not a whole number from 1 to 256"},
        Refusal{{"all_reduce", "-n", "2"}, "unknown option -n; did you mean --nproc-per-node?"},
        Refusal{{"all_reduce", "--np", "257"}, "--nproc-per-node: '257'"},
        Refusal{{"all_reduce", "--np", "two"}, "--nproc-per-node: 'two'"},
        Refusal{{"all_reduce", "--np", "2", "--np", "x"}, "--nproc-per-node: 'x'"},
        Refusal{{"all_reduce", "--np", "2", "barrier", "--np", "x"}, "--nproc-per-node: 'x'"},
        Refusal{{"all_reduce", "--sizes", "4X"}, "--sizes: '4X' is not a size from 1 to 1G"},
        Refusal{{"all_reduce", "--sizes", "2G"}, "--sizes: '2G' is not a size from 1 to 1G"},
        Refusal{{"all_reduce", "--sizes", ""}, "--sizes: the value '' is empty"},
        Refusal{{"all_reduce", "--dtype", "float"}, "--dtype: 'float' is not one of float32,"},
        Refusal{{"all_reduce", "--dtype", "flaot16"}, "did you mean float16?"},
        Refusal{{"all_reduce", "--peer", "openmip"}, "did you mean openmpi?"},
        Refusal{{"all_reduce", "--placement", "up"}, "--placement: 'up' is not in or out"},
        Refusal{{"all_to_all", "--placement", "in"}, "all_to_all works out of place only"},
        Refusal{{"broadcast", "--placement", "out"}, "broadcast works in place only"},
        Refusal{{"all_reduce", "--memory", "gpu"}, "--memory: 'gpu' is not symmetric"},
        Refusal{{"all_reduce", "--buffers", "hot"}, "--buffers: 'hot' is not fresh or warm"},
        Refusal{{"all_reduce", "--rounds", "0"}, "--rounds: '0' is not a whole number from 1"},
        Refusal{{"all_reduce", "--calls", "1e3"}, "--calls: '1e3'"},
        Refusal{{"all_reduce", "--timeout", "0"}, "--timeout: '0' is not a whole number from 1"},
        Refusal{{"all_reduce", "--peer", "mpi"}, "--peer: 'mpi' is not one of gloo, openmpi"},
        Refusal{{"all_reduce", "--peer", "paceline"}, "--peer: 'paceline' is not one of"},
        Refusal{{"all_reduce", "--transport", "rdma"}, "--transport: 'rdma' is not auto, shm"},
        Refusal{{"all_reduce", "--transport", "ucx"}, "is for ranks of several hosts"},
        Refusal{{"all_reduce", "--algorithm", "ring"}, "add --transport tcp"},
        Refusal{{"all_reduce", "--transport", "tcp", "--algorithm", "hierarchy"},
                "several hosts with several ranks"},
        Refusal{{"all_reduce", "--json", "/no/such/folder/f"}, "--json: '/no/such/folder/f': No"},
        Refusal{{"all_reduce", "--size", "4K"}, "did you mean --sizes?"},
        Refusal{{"all_reduce", "--json"}, "--json needs a value"}));

}  // namespace
}  // namespace paceline::bench
