// Where logs and records are written if the user names a relative folder, an impossible one, or one
// that is in use.

#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/harness/says.h"
#include "tests/launcher/launch/paceline_process.h"

namespace paceline::launcher {
namespace {

using harness::Says;
using testing::HasSubstr;
using testing::Not;

// Runs `paceline run` in `folder`, with ranks that change to another folder.
std::vector<std::string> in_folder(const std::string& folder, const std::string& options,
                                   const std::string& how) {
  return {"-c", "cd " + folder + " && exec " PACELINE_COMMAND " run --nproc-per-node 2 " + options +
                    " sh -c 'cd /; exec " RECORDED_PROGRAM " " + how + "'"};
}

TEST(RunLogFolder, a_relative_one_holds_the_records_of_ranks_that_change_their_folder) {
  const FreshDirectory folder;
  const std::string options =
      "--log-dir logs --timeline trace.json --hang-timeout 0.5 --hang-action kill";
  PacelineProcess paceline(in_folder(folder.path(), options, "hangs"), {}, "/bin/sh");
  const Outcome outcome = paceline.wait();
  EXPECT_EQ(outcome.exit_code, 137);
  EXPECT_THAT(outcome.err, Says("records.never_entered", "rank 1",
                                "all_reduce #2 (float32 x 1000, sum, group world)"));
  EXPECT_THAT(outcome.err, Says("cause.ended_while_hanging"));
  EXPECT_THAT(outcome.err, Says("timeline.made", "trace.json"));
  EXPECT_TRUE(std::filesystem::exists(folder.file("logs/rank-001.flight")));
}

TEST(RunLogFolder, a_relative_one_is_found_by_commands_that_run_elsewhere) {
  const FreshDirectory folder;
  PacelineProcess paceline(
      in_folder(folder.path(), "--log-dir logs --rdzv-id relative-logs", "hangs"), {}, "/bin/sh");
  paceline.wait_for_lines("waiting", 1);
  const Outcome logs = run_paceline({"logs", "relative-logs"});
  EXPECT_EQ(logs.exit_code, 0) << logs.err;
  EXPECT_THAT(logs.out, HasSubstr("waiting"));
  const Outcome top = run_paceline({"top", "--once", "relative-logs"});
  EXPECT_THAT(top.out, HasSubstr("broadcast #1")) << top.err;
  paceline.send(SIGTERM);
  EXPECT_EQ(paceline.wait().exit_code, 143);
}

TEST(RunLogFolder, a_relative_folder_of_records_that_the_user_names_is_the_launchers) {
  const FreshDirectory folder;
  PacelineProcess paceline(
      in_folder(folder.path(), "--hang-timeout 0.5 --hang-action kill", "hangs"),
      {{"PACELINE_FLIGHT_DIR", "flights"}}, "/bin/sh");
  EXPECT_EQ(paceline.wait().exit_code, 137);
  EXPECT_TRUE(std::filesystem::exists(folder.file("flights/rank-001.flight")));
}

TEST(RunLogFolder, a_job_inside_a_rank_has_files_of_its_own) {
  const std::string show =
      "echo $PACELINE_FLIGHT_DIR; echo $PACELINE_MEMORY_CHECKPOINT; echo $PACELINE_JOB_SOCKET";
  PacelineProcess paceline(
      {"run", "--nproc-per-node", "1", "sh", "-c",
       show + "; exec " PACELINE_COMMAND " run --standalone --nproc-per-node 1 sh -c '" + show +
           "'"});
  const Outcome outcome = paceline.wait();
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  std::istringstream lines(outcome.out);
  std::vector<std::string> all;
  for (std::string line; std::getline(lines, line);) all.push_back(line);
  ASSERT_EQ(all.size(), 6U) << outcome.out;
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_NE(all[i], "");
    EXPECT_NE(all[i + 3], "");
    EXPECT_NE(all[i], all[i + 3]);
  }
}

TEST(RunLogFolder, one_that_cannot_be_made_or_written_is_an_error_before_the_start) {
  const FreshDirectory folder;
  const std::string file = folder.write("file", "");
  for (const auto& [wanted, message] : std::vector<std::pair<std::string, harness::SaysMatcher>>{
           {"/proc/nowhere", Says("output.folder_not_made", "/proc/nowhere")},
           {file + "/logs", Says("output.folder_not_made", file + "/logs")},
           {"/proc/self", Says("output.folder_not_written", "/proc/self")}}) {
    for (const char* where : {"--nnodes=1", "--hosts=localhost:1"}) {
      const Outcome outcome =
          run_paceline({"run", where, "--log-dir", wanted, "touch", folder.file("started")});
      EXPECT_EQ(outcome.exit_code, 2) << outcome.err;
      EXPECT_THAT(outcome.err, message) << where;
      EXPECT_FALSE(std::filesystem::exists(folder.file("started"))) << where;
    }
  }
}

TEST(RunLogFolder, a_second_job_that_runs_leaves_the_logs_of_the_first_alone) {
  const FreshDirectory folder;
  const std::vector<std::string> run = {"run", "--log-dir", folder.path(), "sh", "-c"};
  const auto with = [&](const std::string& script) {
    std::vector<std::string> all = run;
    all.push_back(script);
    return all;
  };
  PacelineProcess first(with("echo first; read line; echo $line"));
  first.wait_for_lines("first", 1);
  const Outcome second = run_paceline(with("echo second"));
  EXPECT_EQ(second.exit_code, 0);
  EXPECT_THAT(second.err, Says("output.folder_in_use", folder.path()));
  first.write_stdin("last\n");
  EXPECT_EQ(first.wait().exit_code, 0);
  std::stringstream log;
  log << std::ifstream(folder.file("rank-000.log")).rdbuf();
  EXPECT_EQ(log.str(), "first\nlast\n");
  EXPECT_THAT(run_paceline(with("echo third")).err, Not(Says("output.folder_in_use")));
}

}  // namespace
}  // namespace paceline::launcher
