// How jobs of `paceline run` end: by failures, by signals, and by the death of the launcher itself.

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <filesystem>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "paceline/launcher/process/process.h"

#include "tests/harness/says.h"
#include "tests/harness/wait_until.h"
#include "tests/launcher/launch/paceline_process.h"
#include "tests/launcher/launch/terminal_process.h"

namespace paceline::launcher {
namespace {

using namespace std::chrono_literals;
using harness::Says;
using testing::AnyOf;
using testing::HasSubstr;
using testing::Not;

std::vector<std::string> ranks(const char* count, const std::string& script,
                               std::vector<std::string> options = {}) {
  std::vector<std::string> arguments = {"run", "--nproc-per-node", count};
  arguments.insert(arguments.end(), options.begin(), options.end());
  arguments.insert(arguments.end(), {"sh", "-c", script});
  return arguments;
}

// A shell command that returns once all ranks have reached it.
std::string all_ready(const FreshDirectory& directory) {
  return "touch " + directory.path() + "/$RANK; until [ $(ls " + directory.path() +
         " | wc -l) = $WORLD_SIZE ]; do sleep 0.02; done; ";
}

TEST(RunEndings, the_first_rank_that_fails_is_reported_and_gives_the_exit_code) {
  const FreshDirectory directory;
  PacelineProcess paceline(ranks("3", "trap 'exit 9' TERM; " + all_ready(directory) +
                                          "if [ $RANK = 1 ]; then "
                                          "for i in $(seq 30); do echo line $i; done; exit 3; fi; "
                                          "while :; do sleep 0.05; done"));
  const Outcome outcome = paceline.wait();
  EXPECT_EQ(outcome.exit_code, 3);
  EXPECT_THAT(outcome.err, Says("run.first_failure", 1, "exit code 3"));
  EXPECT_THAT(outcome.err, HasSubstr("  | line 11\n"));
  EXPECT_THAT(outcome.err, HasSubstr("  | line 30\n"));
  EXPECT_THAT(outcome.err, Not(HasSubstr("  | line 10\n")));
  EXPECT_THAT(outcome.err, Says("run.followers", "ranks 0, 2"));
  const auto log = outcome.err.find("log: ");
  ASSERT_NE(log, std::string::npos);
  const std::string path = outcome.err.substr(log + 5, outcome.err.find('\n', log) - log - 5);
  EXPECT_TRUE(std::filesystem::exists(path)) << path;
}

TEST(RunEndings, exit_codes_and_signals_of_the_culprit_are_kept) {
  using Row = std::tuple<std::string, int, testing::Matcher<const std::string&>>;
  for (const auto& [script, code, text] :
       std::vector<Row>{{"exit 1", 1, Says("run.first_failure", 0, "exit code 1")},
                        {"exit 137", 137, Says("hint.child_killed")},
                        {"kill -9 $$", 137, Says("run.first_failure", 0, "killed by SIGKILL")},
                        {"kill -SEGV $$", 139, Says("run.first_failure", 0, "killed by SIGSEGV")},
                        {"kill -BUS $$", 135, HasSubstr("/dev/shm")},
                        {"kill -ILL $$", 132, Says("hint.illegal_instruction")},
                        {"exec ./no-such-thing", 127, Says("hint.not_found")}}) {
    const Outcome outcome = run_paceline(ranks("2", "[ $RANK = 0 ] || sleep 60; " + script));
    EXPECT_EQ(outcome.exit_code, code) << script;
    EXPECT_THAT(outcome.err, Says("run.first_failure", 0)) << script;
    EXPECT_THAT(outcome.err, text) << script;
  }
}

TEST(RunEndings, a_rank_that_succeeds_early_does_not_end_the_job) {
  const Outcome outcome =
      run_paceline(ranks("2", "[ $RANK = 1 ] && exit 0; sleep 0.2; echo still here"));
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_EQ(outcome.out, "still here\n");
}

TEST(RunEndings, a_rank_that_ignores_sigterm_is_killed_after_the_grace_time) {
  const FreshDirectory directory;
  const Outcome outcome =
      run_paceline(ranks("2",
                         "trap '' TERM; " + all_ready(directory) +
                             "[ $RANK = 1 ] && exit 4; while :; do sleep 0.05; done",
                         {"--shutdown-timeout", "0.2"}));
  EXPECT_EQ(outcome.exit_code, 4);
  EXPECT_THAT(outcome.err, Says("run.followers", "rank 0", "killed by SIGKILL"));
  EXPECT_THAT(outcome.err, Says("run.killed_after_signal", "rank 0", 0.2, "SIGTERM", "was"));
}

TEST(RunEndings, ranks_that_were_killed_after_a_signal_to_the_launcher_are_named) {
  PacelineProcess paceline(
      ranks("3", "[ $RANK = 1 ] || trap '' TERM; echo ready; while :; do sleep 0.02; done",
            // Enough for rank 1 to end, even on a busy machine.
            {"--all-ranks", "--shutdown-timeout", "3"}));
  for (const char* rank : {"[0] ready", "[1] ready", "[2] ready"}) paceline.wait_for_lines(rank, 1);
  paceline.send(SIGTERM);
  const Outcome outcome = paceline.wait();
  EXPECT_EQ(outcome.signal, SIGTERM);
  EXPECT_THAT(outcome.err, Says("run.killed_after_signal", "ranks 0, 2", 3, "SIGTERM", "were"));
}

TEST(RunEndings, a_clean_stop_names_no_killed_rank) {
  PacelineProcess paceline(ranks("2", "echo ready; exec sleep 1000", {"--all-ranks"}));
  for (const char* rank : {"[0] ready", "[1] ready"}) paceline.wait_for_lines(rank, 1);
  paceline.send(SIGTERM);
  EXPECT_THAT(paceline.wait().err, Not(Says("run.killed_after_signal")));
}

TEST(RunEndings, a_stopped_rank_ends_with_the_others) {
  const Outcome outcome = run_paceline(
      ranks("2", "[ $RANK = 1 ] && exit 4; kill -STOP $$", {"--shutdown-timeout", "60"}));
  EXPECT_EQ(outcome.exit_code, 4);
  // After SIGCONT it obeys SIGTERM, so no grace time passes.
  EXPECT_LT(outcome.seconds.count(), 30.0);
}

TEST(RunEndings, processes_that_a_rank_leaves_running_are_ended) {
  PacelineProcess paceline(ranks("1",
                                 "sleep 1000 & echo pid $!; setsid sleep 1001 & echo pid $!; "
                                 "echo pid $$; read end; exit 0"));
  const auto pidfds = open_pidfds(paceline.wait_for_lines("pid ", 3));
  EXPECT_EQ(paceline.wait().exit_code, 0);
  EXPECT_TRUE(all_gone(pidfds, 0ms));
}

TEST(RunEndings, a_rank_that_failed_by_itself_is_not_reported_as_a_follower) {
  const FreshDirectory directory;
  const Outcome alike =
      run_paceline(ranks("2", "trap '' TERM; " + all_ready(directory) + "exit 127"));
  EXPECT_EQ(alike.exit_code, 127);
  EXPECT_THAT(alike.err, AnyOf(Says("run.also_failed", "rank 0", "exit code 127"),
                               Says("run.also_failed", "rank 1", "exit code 127")));
  EXPECT_THAT(alike.err, Not(Says("run.followers")));
  const FreshDirectory other;
  const std::string words =
      "rank $RANK: rank $((1-RANK)) (box) of group world is gone: its process "
      "ended without leaving the group; see the output of rank $((1-RANK))";
  const Outcome named =
      run_paceline(ranks("2", "trap '' TERM; " + all_ready(other) +
                                  "[ $RANK = 1 ] && exit 4; echo \"" + words + "\" >&2; exit 4"));
  EXPECT_THAT(named.err, Says("run.first_failure", 1));
  EXPECT_THAT(named.err, Says("run.followers", "rank 0", "exit code 4"));
}

TEST(RunEndings, a_program_that_went_to_the_background_is_reported_as_ended) {
  const Outcome outcome =
      run_paceline(ranks("2", "[ $RANK = 0 ] || { sleep 1000 & sleep 1001 & }; exit 0"));
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_THAT(outcome.err,
              Says("run.left_processes", "rank 1", "2 processes", "the first: sleep", "were"));
  EXPECT_THAT(outcome.err, Not(Says("run.left_processes", "a rank")));
  const Outcome strays = run_paceline(ranks("2", "[ $RANK = 0 ] || exec setsid --fork sleep 1000"));
  EXPECT_THAT(strays.err, Says("run.left_processes", "rank 1", "1 process", "sleep", "was"));
  EXPECT_THAT(strays.err, Not(HasSubstr("rank 0")));
}

TEST(RunEndings, helpers_that_end_with_their_rank_are_not_reported) {
  const Outcome outcome = run_paceline(ranks("2", "sleep 0.03 & exit 0"));
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_THAT(outcome.err, Not(Says("run.left_processes")));
}

// A shell poses as Python, whose stacks a helper of the launcher reads with py-spy.
TEST(RunEndings, the_launchers_own_helper_is_not_reported) {
  const FreshDirectory directory;
  const std::string python = directory.file("python");
  std::filesystem::copy_file(std::filesystem::canonical("/bin/sh"), python);
  const std::string asked = directory.file("asked"), end = directory.file("end");
  const std::string reader =
      directory.write("py-spy", "#!/bin/sh\ntouch " + asked + "\nexec sleep 30\n");
  std::filesystem::permissions(reader, std::filesystem::perms::owner_all);
  PacelineProcess paceline({"run", "--rdzv-id", "helper-test", python, "-c",
                            "echo ready; until [ -e " + end + " ]; do sleep 0.02; done"},
                           {{"PATH", directory.path() + ":/usr/bin:/bin"}});
  paceline.wait_for_lines("ready", 1);
  PacelineProcess stacks({"stacks", "helper-test"});
  ASSERT_TRUE(
      harness::wait_until([&] { return std::filesystem::exists(asked); }, Deadline::after(20s)));
  std::ofstream(end) << "";
  const Outcome outcome = paceline.wait();
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_THAT(outcome.err, Not(Says("run.left_processes")));
  stacks.wait();
}

TEST(RunEndings, a_signal_to_the_launcher_reaches_every_rank_once) {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT}) {
    PacelineProcess paceline(ranks(
        "2", "trap 'echo got; exit 0' INT TERM HUP QUIT; echo ready; while :; do sleep 0.02; done",
        {"--all-ranks"}));
    paceline.wait_for_lines("[0] ready", 1);
    paceline.wait_for_lines("[1] ready", 1);
    paceline.send(signal);
    const Outcome outcome = paceline.wait();
    EXPECT_EQ(outcome.signal, signal);  // shells, make and systemd depend on it
    EXPECT_THAT(outcome.out, HasSubstr("[0] got\n"));
    EXPECT_THAT(outcome.out, HasSubstr("[1] got\n"));
    EXPECT_THAT(outcome.err, Says("run.stopped", signal_name(signal)));
  }
}

// All descendants of `pid`, each one after its own children, then `pid` itself.
std::vector<pid_t> family_of(pid_t pid) {
  std::vector<pid_t> family;
  std::ifstream children("/proc/" + std::to_string(pid) + "/task/" + std::to_string(pid) +
                         "/children");
  for (pid_t child = 0; children >> child;) {
    for (const pid_t one : family_of(child)) family.push_back(one);
  }
  family.push_back(pid);
  return family;
}

// Whether the signal is still pending. Until it is not, sending it again would have no effect.
bool is_pending(pid_t pid, int signal) {
  std::ifstream status("/proc/" + std::to_string(pid) + "/status");
  for (std::string line; std::getline(status, line);) {
    if (!line.starts_with("ShdPnd:")) continue;
    return (std::stoull(line.substr(7), nullptr, 16) >> (signal - 1) & 1) != 0;
  }
  return false;
}

// How systemd and batch systems end a job: which processes they signal, and in which order.
TEST(RunEndings, of_systemd_and_batch_systems_are_deaths_by_the_signal) {
  enum class To : std::uint8_t { kLauncher, kAllRanksFirst, kAllLauncherFirst };
  struct Row {
    const char* who;
    int signal;
    To to;
    bool saves;  // the ranks save and exit; otherwise the signal kills them
  };
  const std::vector<Row> rows = {
      {"systemd, KillMode=mixed or process", SIGTERM, To::kLauncher, true},
      {"systemd, KillMode=control-group", SIGTERM, To::kAllLauncherFirst, true},
      {"systemd, KillMode=control-group, another order", SIGTERM, To::kAllRanksFirst, true},
      {"scancel, qdel: ranks that do not care", SIGTERM, To::kAllLauncherFirst, false},
      {"scancel, qdel, another order", SIGTERM, To::kAllRanksFirst, false},
      {"SendSIGHUP, a closed terminal", SIGHUP, To::kLauncher, true},
      {"a limit of CPU time: s_cpu of Grid Engine, LSF", SIGXCPU, To::kLauncher, true},
      {"a limit of CPU time, to all", SIGXCPU, To::kAllLauncherFirst, true},
      {"bkill: SIGINT first", SIGINT, To::kAllLauncherFirst, true},
  };
  for (const Row& row : rows) {
    SCOPED_TRACE(row.who);
    const std::string saving =
        "trap 'echo saved; exit 0' TERM HUP XCPU INT; echo ready; "
        "while :; do sleep 0.02; done";
    PacelineProcess paceline(
        ranks("2", row.saves ? saving : "echo ready; exec sleep 1000", {"--all-ranks"}));
    for (const char* rank : {"[0] ready", "[1] ready"}) paceline.wait_for_lines(rank, 1);
    auto family = family_of(paceline.pid());
    if (row.to == To::kLauncher) family = {paceline.pid()};
    if (row.to == To::kAllLauncherFirst) std::reverse(family.begin(), family.end());
    for (const pid_t pid : family) kill(pid, row.signal);
    const Outcome outcome = paceline.wait();
    EXPECT_EQ(outcome.signal, row.signal) << outcome.exit_code << outcome.err;
    EXPECT_THAT(outcome.err, Says("run.stopped", signal_name(row.signal)));
    if (row.saves) {
      EXPECT_THAT(outcome.out, HasSubstr("[0] saved\n"));
      EXPECT_THAT(outcome.out, HasSubstr("[1] saved\n"));
    }
  }
}

// The grace time of systemd or of a batch system is over: SIGKILL to the launcher, or to all
// processes.
TEST(RunEndings, sigkill_after_sigterm_leaves_no_process_behind) {
  for (const bool to_all : {false, true}) {
    PacelineProcess paceline(ranks(
        "2", "trap 'echo got' TERM; echo pid $$; while :; do sleep 0.02; done", {"--all-ranks"}));
    auto pidfds = open_pidfds(paceline.wait_for_lines("[0] pid ", 1));
    pidfds.push_back(std::move(open_pidfds(paceline.wait_for_lines("[1] pid ", 1)).front()));
    paceline.send(SIGTERM);
    paceline.wait_for_lines("[0] got", 1);
    for (const pid_t pid : to_all ? family_of(paceline.pid()) : std::vector{paceline.pid()}) {
      kill(pid, SIGKILL);
    }
    EXPECT_TRUE(all_gone(pidfds, 10s));
    EXPECT_EQ(paceline.wait().signal, SIGKILL);
  }
}

TEST(RunEndings, a_third_interrupt_kills_an_agent_that_does_not_answer) {
  PacelineProcess paceline(ranks("2",
                                 "trap '' INT TERM; echo agent $PPID; echo pid $$; "
                                 "while :; do sleep 0.02; done",
                                 {"--shutdown-timeout", "60", "--all-ranks"}));
  const pid_t agent = std::stoi(paceline.wait_for_lines("[0] agent ", 1)[0]);
  auto pidfds = open_pidfds(paceline.wait_for_lines("[0] pid ", 1));
  pidfds.push_back(std::move(open_pidfds(paceline.wait_for_lines("[1] pid ", 1)).front()));
  kill(agent, SIGSTOP);
  for (int i = 0; i < 3; ++i) {
    paceline.send(SIGINT);
    EXPECT_TRUE(harness::wait_until([&] { return !is_pending(paceline.pid(), SIGINT); },
                                    Deadline::after(10s)));
  }
  const Outcome outcome = paceline.wait();
  EXPECT_EQ(outcome.signal, SIGINT);
  EXPECT_THAT(outcome.err, Says("run.interrupted", 3));
  EXPECT_TRUE(all_gone(pidfds, 10s));
}

TEST(RunEndings, a_second_interrupt_kills_at_once) {
  PacelineProcess paceline(
      ranks("2", "trap 'echo got' INT; trap '' TERM; echo ready; while :; do sleep 0.02; done",
            {"--shutdown-timeout", "60", "--all-ranks"}));
  for (const char* rank : {"[0] ready", "[1] ready"}) paceline.wait_for_lines(rank, 1);
  paceline.send(SIGINT);
  for (const char* rank : {"[0] got", "[1] got"}) paceline.wait_for_lines(rank, 1);
  paceline.send(SIGINT);
  const Outcome outcome = paceline.wait(30s);
  EXPECT_EQ(outcome.signal, SIGINT);
  EXPECT_THAT(outcome.err, Says("run.killed_at_second_interrupt", "ranks 0, 1", "were"));
}

TEST(RunEndings, a_rank_that_a_signal_killed_is_an_exit_code_of_the_launcher) {
  for (const int signal : {SIGINT, SIGTERM, SIGKILL, SIGSEGV}) {
    const Outcome outcome = run_paceline(ranks("1", "kill -" + std::to_string(signal) + " $$"));
    EXPECT_EQ(outcome.signal, 0) << signal;
    EXPECT_EQ(outcome.exit_code, 128 + signal);
  }
}

TEST(RunEndings, a_rank_that_alone_got_a_stop_signal_failed_first) {
  for (const int signal : {SIGTERM, SIGINT, SIGHUP}) {
    const Outcome outcome = run_paceline(
        ranks("2", "[ $RANK = 1 ] && kill -" + std::to_string(signal) + " $$; sleep 0.2; exit 4"));
    EXPECT_EQ(outcome.exit_code, 128 + signal);
    EXPECT_THAT(outcome.err, Says("run.first_failure", 1, "killed by " + signal_name(signal)));
  }
}

TEST(RunEndings, ranks_that_stop_as_agreed_after_a_signal_are_an_exit_code) {
  PacelineProcess paceline(
      ranks("2", "trap 'exit 85' INT; echo ready; while :; do sleep 0.02; done", {"--all-ranks"}));
  for (const char* rank : {"[0] ready", "[1] ready"}) paceline.wait_for_lines(rank, 1);
  paceline.send(SIGINT);
  const Outcome outcome = paceline.wait();
  EXPECT_EQ(outcome.signal, 0);
  EXPECT_EQ(outcome.exit_code, 85);
}

// Ctrl-C must also end a shell or make that starts the launcher repeatedly: no second round begins.
TEST(RunEndings, ctrl_c_ends_what_repeats_the_launcher) {
  const FreshDirectory directory;
  std::ofstream(directory.file("Makefile"))
      << "all: one two\none two:\n\t@echo round=$@; " << PACELINE_COMMAND
      << " run sh -c 'echo up; exec sleep 1000'\n";
  const std::string once =
      std::string("echo round=$i; ") + PACELINE_COMMAND + " run sh -c 'echo up; exec sleep 1000'";
  const std::vector<std::vector<std::string>> rows = {
      {"/bin/bash", "-c", "for i in one two; do " + once + "; done; echo round=end"},
      {"/bin/sh", "-c", "for i in one two; do " + once + "; done; echo round=end"},
      {"/bin/bash", "-c", "i=one; while true; do " + once + "; i=two; done"},
      {"/usr/bin/make", "-k", "-C", directory.path()},
  };
  for (const auto& command : rows) {
    TerminalProcess repeater(command, {24, 80});
    repeater.wait_for("up");
    repeater.type("\x03");
    EXPECT_NE(repeater.wait(), 0) << command[0];
    EXPECT_THAT(repeater.shown(), Not(HasSubstr("round=two"))) << command[0];
    EXPECT_THAT(repeater.shown(), Not(HasSubstr("round=end"))) << command[0];
  }
}

TEST(RunEndings, user_signals_are_passed_on_without_stopping) {
  PacelineProcess paceline(
      ranks("1", "trap 'echo saved' USR1; echo ready; read end; read end; echo done"));
  paceline.wait_for_lines("ready", 1);
  paceline.send(SIGUSR1);
  paceline.wait_for_lines("saved", 1);
  const Outcome outcome = paceline.wait();
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_THAT(outcome.out, HasSubstr("done\n"));
}

// Ranks with children, some of them in other sessions. One rank is stopped, and all ignore SIGTERM.
constexpr const char* kHardToEnd =
    "trap '' TERM HUP INT; sh -c 'echo pid $$; exec sleep 1000' & "
    "sh -c 'sh -c \"echo pid \\$\\$; exec sleep 1001\" & echo pid $$; wait' & "
    "setsid sh -c 'echo pid $$; exec sleep 1002' & echo pid $$; "
    "[ $RANK = 1 ] && kill -STOP $$; wait";
constexpr std::size_t kHardToEndPids = 5;

std::vector<Fd> start_hard_to_end(PacelineProcess& paceline) {
  std::vector<Fd> pidfds = open_pidfds(paceline.wait_for_lines("[0] pid ", kHardToEndPids));
  for (Fd& pidfd : open_pidfds(paceline.wait_for_lines("[1] pid ", kHardToEndPids))) {
    pidfds.push_back(std::move(pidfd));
  }
  return pidfds;
}

class Sentinel {
 public:
  Sentinel() : pid_(fork()) {
    if (pid_ == 0) {
      execlp("sleep", "sleep", "1003", nullptr);
      _exit(99);
    }
  }
  ~Sentinel() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  bool lives() const { return waitpid(pid_, nullptr, WNOHANG) == 0; }

 private:
  pid_t pid_;
};

TEST(RunEndings, kill_9_of_the_launcher_leaves_no_process_behind) {
  const Sentinel sentinel;
  PacelineProcess paceline(ranks("2", kHardToEnd, {"--all-ranks"}));
  const auto pidfds = start_hard_to_end(paceline);
  paceline.send(SIGKILL);
  EXPECT_TRUE(all_gone(pidfds, 10s));
  EXPECT_TRUE(sentinel.lives());
}

TEST(RunEndings, kill_9_of_the_agent_leaves_no_process_behind) {
  const Sentinel sentinel;
  PacelineProcess paceline(
      ranks("2", std::string("echo agent $PPID; ") + kHardToEnd, {"--all-ranks"}));
  const auto pidfds = start_hard_to_end(paceline);
  kill(std::stoi(paceline.wait_for_lines("[0] agent ", 1)[0]), SIGKILL);
  EXPECT_TRUE(all_gone(pidfds, 10s));
  EXPECT_EQ(paceline.wait().exit_code, 137);
  EXPECT_TRUE(sentinel.lives());
}

TEST(RunEndings, an_unread_console_does_not_save_ranks_from_the_launchers_death) {
  PacelineProcess paceline(ranks("1", "echo pid $$; exec yes"));
  const auto pidfds = open_pidfds(paceline.wait_for_lines("pid ", 1));
  paceline.send(SIGKILL);
  EXPECT_TRUE(all_gone(pidfds, 10s));
}

TEST(RunEndings, an_unread_console_does_not_keep_signals_away) {
  PacelineProcess paceline(ranks("1", "echo pid $$; exec yes"));
  const auto pidfds = open_pidfds(paceline.wait_for_lines("pid ", 1));
  paceline.send(SIGTERM);
  EXPECT_TRUE(all_gone(pidfds, 10s));
  EXPECT_EQ(paceline.wait().exit_code, 143);
}

TEST(RunEndings, a_console_that_is_gone_does_not_end_the_job) {
  const FreshDirectory directory;
  const std::string command = std::string("set -o pipefail; TMPDIR=") + directory.path() + " " +
                              PACELINE_COMMAND + " run sh -c 'seq 100000; touch " +
                              directory.file("done") + "' | head -n 1 > /dev/null";
  EXPECT_EQ(std::system(("bash -c \"" + command + "\"").c_str()), 0);
  EXPECT_TRUE(std::filesystem::exists(directory.file("done")));
}

}  // namespace
}  // namespace paceline::launcher
