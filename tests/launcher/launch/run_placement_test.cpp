// Where `paceline run` puts its ranks, what it reports about that, and `paceline topo`.

#include <csignal>
#include <fstream>
#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "paceline/engine/core/system/topology.h"
#include "paceline/launcher/messages/running_jobs.h"
#include "paceline/launcher/placement/placement.h"

#include "tests/harness/says.h"
#include "tests/launcher/launch/paceline_process.h"

namespace paceline::launcher {
namespace {

using harness::Says;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing::UnorderedElementsAre;

constexpr const char* kShowCpus = "sed -n 's/Cpus_allowed_list:.//p' /proc/self/status";

std::vector<int> own_cpus() { return discover_topology().cpus(); }

TEST(RunPlacement, ranks_run_on_cores_of_their_own) {
  const Topology topology = discover_topology();
  if (topology.num_cores() < 2) GTEST_SKIP() << "one core";
  const Placement expected = plan_placement(topology, {.num_local_ranks = 2});
  const Outcome outcome =
      run_paceline({"run", "--nproc-per-node", "2", "--all-ranks", "sh", "-c", kShowCpus});
  EXPECT_THAT(lines_of(outcome.out),
              UnorderedElementsAre("[0] " + format_cpu_list(expected.ranks[0].cpus),
                                   "[1] " + format_cpu_list(expected.ranks[1].cpus)));
}

TEST(RunPlacement, a_map_is_followed) {
  const std::string last = std::to_string(own_cpus().back());
  const Outcome outcome =
      run_paceline({"run", "--nproc-per-node", "2", "--bind", "map:" + last + ";" + last,
                    "--all-ranks", "sh", "-c", std::string(kShowCpus) + "; echo $OMP_NUM_THREADS"});
  EXPECT_THAT(lines_of(outcome.out),
              UnorderedElementsAre("[0] 1", "[0] " + last, "[1] 1", "[1] " + last));
  EXPECT_THAT(outcome.err, Says("placement.cpu_shared", 0, 1, last));
}

TEST(RunPlacement, without_binding_a_rank_may_run_everywhere) {
  const Outcome outcome = run_paceline({"run", "--bind", "none", "sh", "-c", kShowCpus});
  EXPECT_EQ(outcome.out, format_cpu_list(own_cpus()) + "\n");
}

TEST(RunPlacement, torchruns_numa_binding_is_understood) {
  const Outcome outcome = run_paceline({"run", "--numa_binding=node", "--print-config", "true"});
  EXPECT_THAT(outcome.out, HasSubstr("--bind                numa"));
  EXPECT_THAT(outcome.out, HasSubstr("flag --numa-binding"));
}

TEST(RunPlacement, an_inherited_number_of_threads_holds_and_is_reported) {
  const std::string many = std::to_string(own_cpus().size() + 1);
  const Outcome outcome =
      run_paceline({"run", "sh", "-c", "echo $OMP_NUM_THREADS"}, {{"OMP_NUM_THREADS", many}});
  EXPECT_EQ(outcome.out, many + "\n");
  EXPECT_THAT(outcome.err, AllOf(HasSubstr("paceline: warning: "),
                                 Says("placement.inherited", "OMP_NUM_THREADS", many)));
}

TEST(RunPlacement, the_option_wins_over_every_inherited_number) {
  const Outcome outcome = run_paceline(
      {"run", "--threads-per-rank", "1", "sh", "-c",
       "echo $OMP_NUM_THREADS $OPENBLAS_NUM_THREADS $MKL_NUM_THREADS"},
      {{"OMP_NUM_THREADS", "9"}, {"OPENBLAS_NUM_THREADS", "8"}, {"MKL_NUM_THREADS", "7"}});
  EXPECT_EQ(outcome.out, "1 1 1\n");
  EXPECT_THAT(outcome.err, Not(Says("placement.inherited")));
}

TEST(RunPlacement, a_second_job_on_the_same_cores_is_told_about_the_first) {
  const std::string ranks = std::to_string(discover_topology().num_cores());
  const std::vector<std::string> second = {"run", "--nproc-per-node", ranks, "true"};
  PacelineProcess first({"run", "--nproc-per-node", ranks, "sh", "-c", "echo pid $PPID; sleep 60"});
  const std::string pid = first.wait_for_lines("pid ", 1).front();
  // The first job sets its mark just after it has started its ranks, so this may take several
  // attempts.
  std::string seen;
  for (int attempt = 0; attempt < 100 && seen.find(pid) == std::string::npos; ++attempt) {
    seen = run_paceline(second).err;
  }
  EXPECT_THAT(seen, testing::ContainsRegex("other paceline jobs? .*" + pid));
  EXPECT_THAT(seen, Says("placement.each_runs"));
  EXPECT_THAT(run_paceline({"doctor"}).out, HasSubstr("pid " + pid + ": " + ranks + " rank"));
  first.send(SIGTERM);
  first.wait();
  EXPECT_THAT(run_paceline(second).err, Not(testing::ContainsRegex("[ ]" + pid + "[,)]")));
}

TEST(RunPlacement, a_mark_goes_with_its_holder) {
  JobMark mark = mark_running_job(2, 4);
  EXPECT_THAT(mark.name, testing::StartsWith(fmt::format("paceline-job/{}/2x4/", getpid())));
  EXPECT_THAT(find_marks(), testing::Contains(mark.name));
  mark.listener.reset();
  EXPECT_THAT(find_marks(), Not(testing::Contains(mark.name)));
}

TEST(RunPlacement, a_dry_run_shows_each_process_and_its_reasons) {
  const Outcome outcome =
      run_paceline({"run", "--nproc-per-node", "2", "--dry-run", "sh", "-c", "echo $RANK"});
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_THAT(outcome.out, AllOf(HasSubstr("because: "), HasSubstr("rank 1: "),
                                 HasSubstr("  OMP_NUM_THREADS="), HasSubstr("MASTER_ADDR=127.")));
  const std::string command = "\n  sh -c 'echo $RANK'\n";
  EXPECT_NE(outcome.out.find(command), outcome.out.rfind(command));  // once for each rank
}

TEST(RunPlacement, the_configuration_says_where_each_value_comes_from) {
  const Outcome outcome = run_paceline({"run", "--nproc-per-node", "1", "--print-config", "true"},
                                       {{"PET_SHUTDOWN_TIMEOUT", "2.5"}, {"OMP_NUM_THREADS", "1"}});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  for (const char* line : {"--nproc-per-node +1 +flag --nproc-per-node",
                           "--threads-per-rank +1 +variable OMP_NUM_THREADS",
                           "--shutdown-timeout +2.5 +variable PET_SHUTDOWN_TIMEOUT",
                           "--nnodes +1 +default", "program +/.*true"}) {
    EXPECT_THAT(outcome.out, testing::ContainsRegex(line));
  }
}

TEST(Topo, draws_this_machine) {
  const Outcome outcome = run_paceline({"topo"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, AllOf(HasSubstr("package 0"), HasSubstr("NUMA node 0")));
}

TEST(Topo, draws_another_machine_with_ranks_into_a_file) {
  const FreshDirectory directory;
  const std::string file = directory.file("ranks.svg");
  const Outcome outcome =
      run_paceline({"topo", "--machine", "package:2 numa:1 core:4 pu:2", "--cpus", "0-11",
                    "--nproc-per-node", "auto", "--svg", file});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out,
              AllOf(Says("placement.rank", 5, "10-11", "1 core", "NUMA node 1", "1 thread"),
                    Says("topo.given", "6 cores")));
  std::ostringstream svg;
  svg << std::ifstream(file).rdbuf();
  EXPECT_THAT(svg.str(), AllOf(HasSubstr("<svg "), HasSubstr(">rank 5: "), HasSubstr("</svg>")));
}

TEST(Topo, draws_on_stdout_alone_where_that_is_asked_for) {
  const Outcome outcome = run_paceline({"topo", "--machine", "core:2 pu:1", "--svg", "-"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(outcome.out.substr(0, 5), "<svg ");
  EXPECT_TRUE(outcome.out.ends_with("</svg>\n"));
  EXPECT_FALSE(std::filesystem::exists("-"));
}

struct Refusal {
  std::vector<std::string> options;
  testing::Matcher<const std::string&> message;
  int exit_code = 2;
};

class TopoRefuses : public testing::TestWithParam<Refusal> {};

TEST_P(TopoRefuses, what_it_cannot_do) {
  std::vector<std::string> arguments = GetParam().options;
  arguments.insert(arguments.begin(), "topo");
  const Outcome outcome = run_paceline(arguments);
  EXPECT_EQ(outcome.exit_code, GetParam().exit_code);
  EXPECT_THAT(outcome.err, GetParam().message);
  EXPECT_EQ(outcome.out.find("rank 0"), std::string::npos);
}

INSTANTIATE_TEST_SUITE_P(
    Options, TopoRefuses,
    testing::Values(Refusal{{"--machine", "nonsense"}, Says("topo.not_a_machine", "nonsense")},
                    Refusal{{"--cpus", "a"}, HasSubstr("--cpus: 'a'")},
                    Refusal{{"--machine", "core:2 pu:1", "--cpus", "7"}, Says("topo.no_cpu_left")},
                    Refusal{{"--nproc-per-node", "0"},
                            Says("cli.not_whole", "--nproc-per-node", 0)},
                    Refusal{{"--nproc-per-node", "1", "--bind", "l3"},
                            Says("usage.not_a_binding", "--bind", "l3")},
                    Refusal{{"now"}, Says("cli.not_expected", "now")}));

TEST(RankWatch, too_many_busy_threads_are_reported_while_the_job_runs) {
  const std::string cpu = std::to_string(discover_topology().cpus().front());
  const Outcome outcome =
      run_paceline({"run", "--bind", "map:" + cpu, "--threads-per-rank", "1", "sh", "-c",
                    "for i in 1 2 3 4 5 6; do (while :; do :; done) & done; sleep 8"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.err, Says("placement.too_many_threads", 0, 6, "1 cpu", 1));
}

}  // namespace
}  // namespace paceline::launcher
