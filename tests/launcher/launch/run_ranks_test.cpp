// The ranks of `paceline run`: their place, arguments, streams, ports and secret.

#include <filesystem>
#include <fstream>
#include <memory>
#include <set>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include "paceline/engine/core/system/socket.h"
#include "paceline/launcher/process/rank_resources.h"

#include "tests/harness/says.h"
#include "tests/launcher/launch/paceline_process.h"

namespace paceline::launcher {
namespace {

using harness::Says;
using testing::HasSubstr;
using testing::UnorderedElementsAre;

TEST(RunRanks, each_rank_has_torchruns_variables) {
  const Outcome outcome = run_paceline(
      {"run", "--nproc-per-node", "2", "--rdzv-id", "job 7", "--all-ranks", "sh", "-c",
       "echo $RANK $WORLD_SIZE $LOCAL_RANK $LOCAL_WORLD_SIZE $GROUP_RANK $GROUP_WORLD_SIZE "
       "$ROLE_NAME $ROLE_RANK $ROLE_WORLD_SIZE $MASTER_ADDR $TORCHELASTIC_RESTART_COUNT "
       "$TORCHELASTIC_MAX_RESTARTS $TORCHELASTIC_RUN_ID"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(lines_of(outcome.out),
              UnorderedElementsAre("[0] 0 2 0 2 0 1 default 0 2 127.0.0.1 0 0 job 7",
                                   "[1] 1 2 1 2 0 1 default 1 2 127.0.0.1 0 0 job 7"));
}

TEST(RunRanks, arguments_arrive_as_they_were_typed) {
  const std::vector<std::string> words = {
      "a b",   "\"q\"", "'", "new\nline", "\xc3\xbc",           "$$", "${local_rank}", "$(touch x)",
      "[a,b]", "",      "*", "--help",    "--nproc-per-node=9", "--", "%s\\n",         "\x1b[31m"};
  for (const bool separator : {false, true}) {
    std::vector<std::string> arguments = {"run"};
    if (separator) arguments.emplace_back("--");
    arguments.insert(arguments.end(), {"printf", "<%s>"});
    arguments.insert(arguments.end(), words.begin(), words.end());
    std::string expected;
    for (const std::string& word : words) expected += "<" + word + ">";
    EXPECT_EQ(run_paceline(arguments).out, expected);
  }
  const std::string large(100 << 10, 'x');
  EXPECT_EQ(run_paceline({"run", "printf", "%s", large}).out, large);
}

TEST(RunRanks, rank_0_reads_stdin_and_the_others_see_its_end) {
  PacelineProcess paceline({"run", "--nproc-per-node", "2", "--all-ranks", "cat"});
  paceline.write_stdin("hello\n");
  const Outcome outcome = paceline.wait();
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_EQ(outcome.out, "[0] hello\n");
}

TEST(RunRanks, rank_0_is_plain_on_the_console_and_every_rank_is_in_its_log) {
  const FreshDirectory directory;
  const Outcome outcome =
      run_paceline({"run", "--nproc-per-node", "3", "--log-dir", directory.file("logs/deep"), "sh",
                    "-c", "printf '\\033[1mout %s\\n' $RANK; echo err $RANK >&2"});
  EXPECT_EQ(outcome.out, "\x1b[1mout 0\n");
  EXPECT_THAT(outcome.err, HasSubstr("err 0\n"));
  EXPECT_THAT(outcome.err, testing::Not(HasSubstr("err 1")));
  for (const char* rank : {"0", "1", "2"}) {
    const std::string log =
        content_of(directory.file(std::string("logs/deep/rank-00") + rank + ".log"));
    EXPECT_THAT(lines_of(log), UnorderedElementsAre(std::string("\x1b[1mout ") + rank,
                                                    std::string("err ") + rank));
  }
}

TEST(RunRanks, multiplexed_output_has_whole_lines_without_escapes) {
  const Outcome outcome = run_paceline({"run", "--nproc-per-node", "2", "--all-ranks", "sh", "-c",
                                        "printf 'a\\033[2J\\007b\\r\\nlast'"});
  EXPECT_THAT(lines_of(outcome.out), UnorderedElementsAre("[0] a\\x1b[2J\\x07b", "[0] last",
                                                          "[1] a\\x1b[2J\\x07b", "[1] last"));
}

TEST(RunRanks, tee_and_filter_choose_what_is_shown) {
  const std::string script = "echo out $RANK; echo err $RANK >&2";
  const Outcome tee =
      run_paceline({"run", "--nproc-per-node", "3", "-t", "1:1,2:2", "sh", "-c", script});
  EXPECT_EQ(tee.out, "[1] out 1\n");
  EXPECT_EQ(tee.err.substr(tee.err.rfind("[")), "[2] err 2\n");
  const Outcome filter = run_paceline(
      {"run", "--nproc-per-node", "3", "--local_ranks_filter", "0,2", "sh", "-c", script});
  EXPECT_THAT(lines_of(filter.out), UnorderedElementsAre("[0] out 0", "[2] out 2"));
}

TEST(RunRanks, redirects_keep_streams_off_the_console_and_in_the_log) {
  const FreshDirectory logs;
  const auto shown = [&](std::vector<std::string> options) {
    options.insert(options.begin(),
                   {"run", "--nproc-per-node", "2", "--log-dir", logs.file("logs")});
    options.insert(options.end(), {"sh", "-c", "echo out $RANK; echo err $RANK >&2"});
    const Outcome outcome = run_paceline(options);
    const auto start = outcome.err.find("err");
    return outcome.out + (start == std::string::npos ? "" : outcome.err.substr(start));
  };
  EXPECT_EQ(shown({"-r", "1"}), "err 0\n");
  EXPECT_EQ(shown({"--redirects", "3"}), "");
  EXPECT_EQ(shown({"--redirects=1:3"}), "out 0\nerr 0\n");
  EXPECT_EQ(shown({"-r", "3", "-t", "0:1"}), "[0] out 0\n");  // redirected, and also shown
  EXPECT_EQ(shown({"-r", "0:2,1:3", "--local-ranks-filter", "0,1"}), "[0] out 0\n");
  EXPECT_THAT(lines_of(content_of(logs.file("logs/rank-001.log"))),
              UnorderedElementsAre("err 1", "out 1"));
}

TEST(RunRanks, a_role_is_their_role_name) {
  const std::vector<std::string> program = {"sh", "-c", "echo $ROLE_NAME $ROLE_RANK"};
  std::vector<std::string> arguments = {"run", "--role", "my trainer"};
  arguments.insert(arguments.end(), program.begin(), program.end());
  EXPECT_EQ(run_paceline(arguments).out, "my trainer 0\n");
}

TEST(RunRanks, a_success_leaves_nothing_in_the_temporary_folder) {
  PacelineProcess paceline({"run", "--nproc-per-node", "2", "true"});
  const std::string temporary = paceline.temporary();
  EXPECT_EQ(paceline.wait().exit_code, 0);
  EXPECT_TRUE(std::filesystem::is_empty(temporary));
}

TEST(RunRanks, a_log_folder_that_cannot_be_made_is_an_error_before_the_start) {
  const FreshDirectory directory;
  std::ofstream(directory.file("file")) << "";
  const Outcome outcome = run_paceline({"run", "--nproc-per-node", "2", "--log-dir",
                                        directory.file("file/logs"), "sh", "-c", "echo ran"});
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_EQ(outcome.out, "");
  EXPECT_THAT(outcome.err,
              Says("output.folder_not_made", directory.file("file/logs"), "Not a directory"));
}

TEST(RunRanks, a_full_disk_under_the_logs_costs_one_warning) {
  const FreshDirectory directory;
  const std::string script = fmt::format(
      "mount -t tmpfs -o size=16k tmpfs {0} || exit 77; head -c 99999 /dev/zero 2>&- >{0}/others; "
      "exec {1} run --nproc-per-node 2 --log-dir {0} sh -c 'echo one; echo two'",
      directory.path(), PACELINE_COMMAND);
  const std::string flags = ::geteuid() == 0 ? "-m" : "-rm";
  const Outcome outcome =
      PacelineProcess({flags, "sh", "-c", script}, {}, "/usr/bin/unshare").wait();
  if (outcome.exit_code == 77 || outcome.err.starts_with("unshare:")) {
    GTEST_SKIP() << "no file system can be mounted here";
  }
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(outcome.out, "one\ntwo\n");
  EXPECT_THAT(lines_of(outcome.err),
              testing::Contains(Says("output.log_incomplete", "No space left on device")).Times(1));
}

TEST(RunRanks, a_line_without_end_keeps_the_launcher_small) {
  const Outcome outcome =
      run_paceline({"run", "--nproc-per-node", "2", "sh", "-c",
                    "head -c 64000000 /dev/zero | tr '\\0' x; grep VmHWM /proc/$PPID/status >&2"});
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_EQ(outcome.out.size(), 64000000U);
  const auto at = outcome.err.find("VmHWM:");
  ASSERT_NE(at, std::string::npos) << outcome.err;
  EXPECT_LT(std::stol(outcome.err.substr(at + 6)), 64 << 10);  // KiB, of the agent
}

TEST(RunRanks, the_secret_is_in_a_descriptor_and_nowhere_else) {
  const Outcome outcome = run_paceline(
      {"run", "sh", "-c",
       "s=$(cat /proc/self/fd/$PACELINE_SECRET_FD); echo ${#s}; export CANARY=$s; "
       "sh -c 'grep -l $CANARY /proc/$$/environ | wc -l'; "
       "grep -l $s /proc/$$/environ /proc/$PPID/environ /proc/$PPID/cmdline /proc/$$/cmdline; "
       "true"});
  EXPECT_EQ(outcome.out, "64\n1\n");  // 1: the search works
}

TEST(RunRanks, closed_standard_streams_do_no_harm) {
  const FreshDirectory directory;
  const std::string command =
      std::string(PACELINE_COMMAND) + " run touch " + directory.file("ran") + " <&- >&- 2>&-";
  EXPECT_EQ(std::system(command.c_str()), 0);
  EXPECT_TRUE(std::filesystem::exists(directory.file("ran")));
  // Closed streams do no harm even if the launcher has a message to print.
  EXPECT_EQ(std::system(("OMP_NUM_THREADS=99 " + command).c_str()), 0);
}

TEST(RunRanks, fifty_launches_at_once_share_no_port) {
  constexpr int kLaunches = 50;
  std::vector<std::unique_ptr<PacelineProcess>> launches;
  for (int i = 0; i < kLaunches; ++i) {
    launches.push_back(std::make_unique<PacelineProcess>(std::vector<std::string>{
        "run", "sh", "-c", "echo port ${PACELINE_STORE#*:}; echo port $MASTER_PORT; read end"}));
  }
  std::set<std::string> ports;
  for (const auto& launch : launches) {
    for (const std::string& port : launch->wait_for_lines("port ", 2)) ports.insert(port);
  }
  EXPECT_EQ(ports.size(), 2U * kLaunches);
  for (const auto& launch : launches) launch->wait();
}

TEST(RunRanks, a_secret_that_others_can_read_is_refused) {
  const FreshDirectory directory;
  const std::string secret = directory.file("secret");
  std::ofstream(secret) << "0123456789abcdef0123456789abcdef\n";
  std::filesystem::permissions(secret, std::filesystem::perms(0644));
  const Outcome open =
      run_paceline({"run", "--nnodes", "2", "--rdzv-endpoint", "localhost", "true"},
                   {{"PACELINE_SECRET_FILE", secret}});
  EXPECT_EQ(open.exit_code, 2);
  EXPECT_THAT(open.err, Says("secret.not_private", secret));
}

TEST(RunRanks, a_taken_port_is_an_error_that_says_how_to_find_its_holder) {
  const Fd holder = listen_tcp({"127.0.0.1", 0});
  const std::string port = std::to_string(local_port(holder));
  const Outcome outcome = run_paceline({"run", "--master-port", port, "true"});
  EXPECT_EQ(outcome.exit_code, 3);
  EXPECT_THAT(outcome.err, Says("limits.port_taken", port, port));
}

// Python's subprocess closes all descriptors that it does not know.
TEST(RunRanks, a_wrapper_that_closes_descriptors_is_told_what_to_do) {
  const std::vector<std::string> job = {
      "run",
      "--nproc-per-node",
      "2",
      "/usr/bin/python3",
      "-c",
      "import subprocess, sys; sys.exit(subprocess.run(sys.argv[1:]).returncode)",
      RECORDED_PROGRAM,
      "ends"};
  const Outcome closed = run_paceline(job);
  EXPECT_NE(closed.exit_code, 0);
  EXPECT_THAT(closed.err, Says("secret.descriptor_closed"));
  const FreshDirectory directory;
  const std::string secret = directory.file("secret");
  std::ofstream(secret) << "0123456789abcdef0123456789abcdef\n";
  ASSERT_EQ(chmod(secret.c_str(), 0600), 0);
  const Outcome by_file = run_paceline(job, {{"PACELINE_SECRET_FILE", secret}});
  EXPECT_EQ(by_file.exit_code, 0) << by_file.err;
}

}  // namespace
}  // namespace paceline::launcher
