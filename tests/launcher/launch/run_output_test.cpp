// The output of ranks is visible at once, for programs of every kind, and complete, whatever ends
// the ranks.

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/harness/says.h"
#include "tests/harness/wait_until.h"
#include "tests/launcher/launch/paceline_process.h"
#include "tests/launcher/launch/terminal_process.h"

namespace paceline::launcher {
namespace {

using namespace std::chrono_literals;
using harness::Says;
using testing::AllOf;
using testing::HasSubstr;

// A kind of program that prints "line of KIND", makes a file and waits.
struct Kind {
  std::string name;
  std::vector<std::string> command;  // without the name of the file
};

const std::vector<Kind>& kinds() {
  static const std::vector<Kind> all = {
      {"C", {PRINTING_PROGRAM, "C"}},
      {"C++", {PRINTING_PROGRAM, "C++"}},
      {"iostream", {PRINTING_PROGRAM, "iostream"}},
      {"C++", {LINKED_PRINTING_PROGRAM, "C++"}},
      {"Python",
       {"/usr/bin/env", "-u", "PYTHONUNBUFFERED", "python3", "-c",
        "import signal, sys; print('line of Python'); open(sys.argv[1], 'w'); signal.pause()"}},
      {"Perl", {"/usr/bin/perl", "-e", "print \"line of Perl\\n\"; open F, '>', shift; sleep"}},
  };
  return all;
}

// The command for all ranks; each one adds the file name "FILE-RANK".
std::vector<std::string> command_of(const Kind& kind, const std::string& file) {
  std::vector<std::string> words = {"sh", "-c", "exec \"$@\" " + file + "-$RANK", "sh"};
  words.insert(words.end(), kind.command.begin(), kind.command.end());
  return words;
}

std::vector<std::string> job(std::vector<std::string> options,
                             const std::vector<std::string>& command) {
  options.insert(options.begin(), {"run", "--nproc-per-node", "2"});
  options.insert(options.end(), command.begin(), command.end());
  return options;
}

TEST(RunOutput, a_line_is_on_the_console_in_logs_and_in_the_log_while_its_program_runs) {
  for (const Kind& kind : kinds()) {
    SCOPED_TRACE(kind.name + " " + kind.command.front());
    const FreshDirectory directory;
    const std::string id = fmt::format("output-{}-{}", getpid(), &kind - kinds().data());
    PacelineProcess paceline(job({"--all-ranks", "--rdzv-id", id, "--log-dir", directory.path()},
                                 command_of(kind, directory.file("printed"))));
    const std::string line = "line of " + kind.name;
    paceline.wait_for_lines("[0] " + line, 1);
    paceline.wait_for_lines("[1] " + line, 1);
    EXPECT_EQ(run_paceline({"logs", id, "--rank", "1"}).out, line + "\n");
    const Outcome stop = run_paceline({"stop", id});
    EXPECT_EQ(stop.exit_code, 0) << stop.err;
    EXPECT_EQ(paceline.wait().exit_code, 128 + SIGTERM);
    EXPECT_EQ(content_of(directory.file("rank-000.log")), line + "\n");
    EXPECT_EQ(content_of(directory.file("rank-001.log")), line + "\n");
  }
}

TEST(RunOutput, a_line_outlives_the_death_of_its_rank_and_of_a_neighbour) {
  for (const Kind& kind : kinds()) {
    SCOPED_TRACE(kind.name + " " + kind.command.front());
    const FreshDirectory directory;
    const std::string printed = directory.file("printed");
    std::vector<std::string> command = command_of(kind, printed);
    command[2] = "[ $RANK = 0 ] && exec \"$@\" " + printed + "; until [ -e " + printed +
                 " ]; do sleep 0.02; done; kill -9 $$";
    const Outcome outcome = run_paceline(job({"--log-dir", directory.path()}, command));
    EXPECT_EQ(outcome.exit_code, 128 + SIGKILL);
    EXPECT_EQ(outcome.out, "line of " + kind.name + "\n");
    EXPECT_EQ(content_of(directory.file("rank-000.log")), "line of " + kind.name + "\n");
  }
}

TEST(RunOutput, bytes_of_every_value_pass_unchanged_and_none_is_lost_at_the_end) {
  const FreshDirectory directory;
  std::mt19937 random(7);
  std::string bytes(3'000'001, '\0');
  for (char& byte : bytes) byte = static_cast<char>(random());
  std::ofstream(directory.file("bytes"), std::ios::binary) << bytes;
  const Outcome outcome =
      run_paceline({"run", "--log-dir", directory.file("logs"), "cat", directory.file("bytes")});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_TRUE(outcome.out == bytes) << outcome.out.size();
  EXPECT_TRUE(content_of(directory.file("logs/rank-000.log")) == bytes);
}

constexpr const char* kShowTerminal =
    "import os; print(os.isatty(1), os.isatty(2), *os.get_terminal_size(1)); "
    "print(*(os.environ.get(v, '-') for v in ('TERM', 'NO_COLOR', 'COLORTERM')))";

TEST(RunOutput, a_rank_whose_output_goes_to_a_file_has_a_dumb_terminal) {
  const PacelineProcess::Variables user = {{"TERM", "xterm"}, {"COLORTERM", "truecolor"}};
  EXPECT_EQ(run_paceline({"run", "python3", "-c", kShowTerminal}, user).out,
            "True False 80 24\ndumb 1 -\n");
}

TEST(RunOutput, a_rank_that_is_shown_on_a_terminal_has_its_size_and_kind) {
  TerminalProcess paceline({PACELINE_COMMAND, "run", "python3", "-c", kShowTerminal}, {40, 101},
                           {{"TERM", "xterm"}});
  EXPECT_EQ(paceline.wait(), 0);
  EXPECT_THAT(paceline.shown(), AllOf(HasSubstr("True False 101 40\r\n"), HasSubstr("xterm - ")));
}

TEST(RunOutput, ctrl_c_and_other_control_bytes_that_a_rank_prints_are_bytes) {
  const Outcome outcome = run_paceline({"run", "printf", "a\\003b\\032c\\004d\\023e\\n"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(outcome.out, "a\003b\032c\004d\023e\n");
}

TEST(RunOutput, without_a_pseudo_terminal_one_warning_is_given_and_python_is_still_live) {
  if (std::system("unshare -m true 2> /dev/null") != 0) {
    GTEST_SKIP() << "mount namespaces are not allowed here";
  }
  PacelineProcess paceline(
      {"-m", "sh", "-c", "mount --bind /dev/null /dev/ptmx && exec \"$@\"", "sh", PACELINE_COMMAND,
       "run", "--nproc-per-node", "2", "--all-ranks", "python3", "-c",
       "import os, time; print('terminal', os.isatty(1)); time.sleep(1000)"},
      {}, "/usr/bin/unshare");
  paceline.wait_for_lines("[0] terminal False", 1);
  paceline.wait_for_lines("[1] terminal False", 1);
  paceline.send(SIGTERM);
  const Outcome outcome = paceline.wait();
  EXPECT_THAT(lines_of(outcome.err), testing::Contains(Says("output.no_terminal")).Times(1));
}

}  // namespace
}  // namespace paceline::launcher
