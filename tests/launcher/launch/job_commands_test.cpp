// `paceline ps`, `top`, `logs` and `stop` on real jobs, and which users may use them.

#include <algorithm>
#include <csignal>
#include <cstddef>
#include <fstream>
#include <sstream>
#include <thread>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "paceline/engine/core/error.h"
#include "paceline/engine/core/system/socket.h"
#include "paceline/engine/telemetry/step_log.h"
#include "paceline/launcher/messages/running_jobs.h"

#include "tests/harness/says.h"
#include "tests/launcher/launch/paceline_process.h"
#include "tests/launcher/launch/terminal_process.h"

namespace paceline::launcher {
namespace {

using namespace std::chrono_literals;
using harness::Says;
using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::StartsWith;

// A job of two ranks with an id that no other test uses.
class Job {
 public:
  explicit Job(std::string id, const std::string& script = "echo ready; read end; sleep 60",
               std::vector<std::string> options = {})
      : id_(std::move(id)), process_(arguments(script, std::move(options))) {
    process_.wait_for_lines("[0] ready", 1);
    process_.wait_for_lines("[1] ready", 1);
  }
  const std::string& id() const { return id_; }
  PacelineProcess& process() { return process_; }

 private:
  std::vector<std::string> arguments(const std::string& script, std::vector<std::string> options) {
    std::vector<std::string> all = {"run",         "--nproc-per-node", "2",
                                    "--all-ranks", "--rdzv-id",        id_};
    all.insert(all.end(), options.begin(), options.end());
    all.insert(all.end(), {"sh", "-c", script});
    return all;
  }
  std::string id_;
  PacelineProcess process_;
};

nlohmann::json listed(const std::string& id) {
  for (const auto& job : nlohmann::json::parse(run_paceline({"ps", "--json"}).out)) {
    if (job["job"] == id) return job;
  }
  return {};
}

// The fields of `entry` that the help of `command` does not name.
std::vector<std::string> fields_not_in_help(const std::string& command,
                                            const nlohmann::json& entry) {
  const std::string help = run_paceline({command, "--help"}).out;
  std::vector<std::string> missing;
  for (const auto& [name, value] : entry.items()) {
    if (help.find(name) == std::string::npos) missing.push_back(name);
  }
  return missing;
}

// The mark of the job. Lists the jobs only once, because other tests make thousands of marks.
std::string mark_of(const Job& job) {
  const pid_t launcher = listed(job.id())["launcher"].get<pid_t>();
  for (const std::string& mark : find_marks()) {
    if (launcher_of(mark) == launcher) return mark;
  }
  return {};
}

TEST(JobCommands, ps_lists_a_job_with_its_ranks_until_it_ends) {
  Job job("ps-test");
  const auto entry = listed(job.id());
  EXPECT_EQ(entry["supervisor"], job.process().pid());
  EXPECT_EQ(entry["world_size"], 2);
  EXPECT_EQ(entry["ranks"].size(), 2u);
  EXPECT_EQ(entry["command"][0], "sh");
  EXPECT_THAT(entry["log_directory"].get<std::string>(), StartsWith(job.process().temporary()));
  const std::string table = run_paceline({"ps"}).out;
  EXPECT_THAT(table, StartsWith("JOB "));
  EXPECT_THAT(table, HasSubstr("ps-test"));
  job.process().send(SIGTERM);
  job.process().wait();
  EXPECT_TRUE(listed(job.id()).is_null());
}

TEST(JobCommands, ps_shows_control_characters_of_folders_and_commands_as_text) {
  const FreshDirectory folder;
  Job job("odd-test", "echo ready; : '\t'; sleep 60", {"--log-dir", folder.file("a\033[31m\nb")});
  const std::string table = run_paceline({"ps"}).out;
  EXPECT_THAT(table, HasSubstr(folder.path() + "/a\\x1b[31m\\x0ab\n"));
  EXPECT_THAT(table, testing::Not(HasSubstr("\033")));
  EXPECT_THAT(table, HasSubstr("\\x09"));
  job.process().send(SIGTERM);
  job.process().wait();
}

TEST(JobCommands, stop_ends_a_job_as_a_signal_does) {
  Job job("stop-test");
  const Outcome stop = run_paceline({"stop", "stop-test"});
  EXPECT_EQ(stop.exit_code, 0) << stop.err;
  EXPECT_EQ(stop.out, "stop-test has ended\n");
  const Outcome outcome = job.process().wait();
  EXPECT_EQ(outcome.exit_code, 143);
  EXPECT_THAT(outcome.err, Says("run.stopped", "SIGTERM"));
}

TEST(JobCommands, stop_says_when_a_job_does_not_end_in_time) {
  Job job("deaf-test", "trap '' TERM; echo ready; while :; do sleep 0.05; done");
  const Outcome stop = run_paceline({"stop", "deaf-test", "--timeout", "0.2"});
  EXPECT_EQ(stop.exit_code, 3);
  EXPECT_THAT(stop.err, Says("stop.still_runs", "deaf-test", 0.2));
  job.process().send(SIGINT);
  job.process().send(SIGINT);
  job.process().wait();
}

TEST(JobCommands, logs_shows_the_last_lines_and_follows_until_the_end) {
  Job job("logs-test",
          "for i in 1 2 3 4; do echo line $i; done; printf 'a\\033[2Jb\\n'; echo ready; "
          "until [ -e $TMPDIR/go ]; do sleep 0.02; done; echo last $RANK");
  const Outcome last = run_paceline({"logs", "logs-test", "--rank", "1", "-n", "3"});
  EXPECT_EQ(last.out, "line 4\na\\x1b[2Jb\nready\n") << last.err;
  const Outcome none = run_paceline({"logs", "logs-test", "--rank", "1", "-n", "0"});
  EXPECT_EQ(none.out, "");
  EXPECT_THAT(run_paceline({"logs", "logs-test"}).out, HasSubstr("[1] line 1\n"));
  PacelineProcess follow({"logs", "-f", "logs-test"});
  follow.wait_for_lines("[1] ready", 1);
  std::ofstream(job.process().temporary() + "/go") << "";
  EXPECT_EQ(job.process().wait().exit_code, 0);
  const Outcome outcome = follow.wait();
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_THAT(outcome.out, HasSubstr("[0] last 0\n"));
  EXPECT_THAT(outcome.out, HasSubstr("[1] last 1\n"));
  EXPECT_THAT(outcome.out, Not(HasSubstr("\x1b")));
}

TEST(JobCommands, logs_finds_as_many_lines_as_are_wanted_however_long_the_output_is) {
  constexpr int kWritten = 300'000, kWanted = 250'000;  // about 3 MB
  Job job("long-logs-test",
          fmt::format("[ $RANK = 0 ] || seq {}; echo ready; read end; sleep 60", kWritten));
  const Outcome last =
      run_paceline({"logs", "long-logs-test", "--rank", "1", "-n", std::to_string(kWanted + 1)});
  EXPECT_THAT(last.out, StartsWith(std::to_string(kWritten - kWanted + 1) + "\n"));
  EXPECT_EQ(std::count(last.out.begin(), last.out.end(), '\n'), kWanted + 1);
}

TEST(JobCommands, logs_and_top_end_when_their_reader_has_left_though_nothing_is_written) {
  Job job("reader-test");
  PacelineProcess piped({"-c", PACELINE_COMMAND " logs -f reader-test | head -n 1"}, {}, "/bin/sh");
  EXPECT_EQ(piped.wait().out, "[0] ready\n");
  PacelineProcess table(
      {"-c", PACELINE_COMMAND " top --json reader-test --interval 0.1 | head -n 1"}, {}, "/bin/sh");
  EXPECT_EQ(table.wait().exit_code, 0);
  EXPECT_EQ(run_paceline({"stop", "reader-test"}).exit_code, 0);
}

TEST(JobCommands, top_shows_cpu_memory_and_the_steps_that_a_program_counts) {
  PacelineProcess paceline(
      {"run", "--nproc-per-node", "2", "--rdzv-id", "top-test", RECORDED_PROGRAM, "counts"});
  paceline.wait_for_lines("waiting", 1);
  const Outcome outcome =
      run_paceline({"top", "top-test", "--json", "--once", "--interval", "0.5"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const auto json = nlohmann::json::parse(outcome.out);
  ASSERT_EQ(json["ranks"].size(), 2u);
  EXPECT_THAT(fields_not_in_help("top", json), IsEmpty());
  EXPECT_THAT(fields_not_in_help("top", json["ranks"][0]), IsEmpty());
  EXPECT_THAT(fields_not_in_help("ps", listed("top-test")), IsEmpty());
  for (const auto& rank : json["ranks"]) {
    EXPECT_EQ(rank["state"], "running");
    EXPECT_GT(rank["memory_bytes"], 1 << 20);
    EXPECT_GT(rank["step"], 1000);  // the program begins to count at 1000
    EXPECT_GT(rank["samples_per_second"], 0);
    // The share that the program reports.
    EXPECT_NEAR(rank["waiting_share"].get<double>(), 0.25, 0.01);
    EXPECT_GT(rank["operations_per_second"], 0);
    EXPECT_THAT(rank["where"].get<std::string>(), HasSubstr("all_reduce #"));
  }
  // Without a terminal.
  const Outcome table = run_paceline({"top", "top-test", "--interval", "0.2"});
  EXPECT_THAT(table.out, StartsWith("top-test  "));
  EXPECT_THAT(table.out, HasSubstr("SAMPLES/S"));
  EXPECT_THAT(table.out, Not(HasSubstr("\x1b")));
  const std::string temporary = paceline.temporary();
  EXPECT_EQ(run_paceline({"stop", "top-test"}).exit_code, 0);
  paceline.wait();
}

// The lines on the screen after the last time that `shown` cleared it.
std::vector<std::string> lines_on_screen(const std::string& shown) {
  std::istringstream stream(shown.substr(shown.rfind("\x1b[J") + 3));
  std::vector<std::string> lines;
  for (std::string line; std::getline(stream, line);) {
    lines.push_back(line.substr(0, line.find('\r')));
  }
  return lines;
}

TEST(JobCommands, top_keeps_to_the_window_and_ends_with_q) {
  PacelineProcess job({"run", "--nproc-per-node", "4", "--rdzv-id", "window-test-é", "sh", "-c",
                       "echo ready; exec sleep 60"});
  job.wait_for_lines("ready", 1);
  TerminalProcess top({PACELINE_COMMAND, "top", "window-test", "--interval", "0.1"}, {5, 16},
                      {{"TERM", "xterm"}});
  const std::string clear = "\x1b[H\x1b[J";
  top.wait_for(clear);
  auto lines = lines_on_screen("\x1b[J" + top.wait_for("\x1b[H"));
  ASSERT_EQ(lines.size(), 5u) << top.shown();
  EXPECT_EQ(lines[0], "window-test-é  s");
  EXPECT_EQ(lines[2], " RANK      PID S");
  EXPECT_EQ(lines[3].size(), 16u);
  EXPECT_THAT(lines[4], StartsWith("and 3 more ranks"));
  top.resize({24, 80});
  top.wait_for("\n    3 ");
  top.type("xq");
  EXPECT_EQ(top.wait(), 0);
  TerminalProcess dumb({PACELINE_COMMAND, "top", "window-test", "--interval", "0.1"}, {24, 80},
                       {{"TERM", "dumb"}});
  EXPECT_EQ(dumb.wait(), 0);
  EXPECT_THAT(dumb.shown(), AllOf(HasSubstr("SAMPLES/S"), Not(HasSubstr("\x1b"))));
  EXPECT_EQ(run_paceline({"stop", "window-test"}).exit_code, 0);
  job.wait();
}

TEST(JobCommands, a_job_that_is_not_there_or_not_clear_is_refused) {
  Job one("same-1"), two("same-2");
  const Outcome missing = run_paceline({"stop", "other"});
  EXPECT_EQ(missing.exit_code, 2);
  EXPECT_THAT(missing.err, Says("jobs.no_job", "other"));
  const Outcome both = run_paceline({"logs", "same-"});
  EXPECT_EQ(both.exit_code, 2);
  EXPECT_THAT(both.err, Says("jobs.not_clear", "same-"));
  EXPECT_EQ(run_paceline({"stop", "a", "b"}).exit_code, 2);
  EXPECT_EQ(run_paceline({"ps", "x"}).exit_code, 2);
  EXPECT_EQ(run_paceline({"top", "--interval", "0"}).exit_code, 2);
  EXPECT_EQ(run_paceline({"logs", "same-1", "-n", "-3"}).exit_code, 2);
  const std::string by_pid = std::to_string(two.process().pid());
  EXPECT_EQ(run_paceline({"stop", by_pid}).out, "same-2 has ended\n");
}

// A process that listens under the names that `name_of` makes until it is killed, and never
// answers.
class SilentListener {
 public:
  // `name_of` gets the pid of that process and a number below `count`. `full`: the queues of its
  // sockets are full, so no more connections fit.
  SilentListener(int count, const std::function<std::string(pid_t pid, int number)>& name_of,
                 uid_t user = getuid(), bool full = false) {
    int ends[2];
    if (pipe(ends) != 0) throw std::runtime_error("pipe()");
    const Fd ready(ends[0]);
    Fd others(ends[1]);
    pid_ = fork();
    if (pid_ == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      rlimit limit{};
      getrlimit(RLIMIT_NOFILE, &limit);
      limit.rlim_cur = limit.rlim_max;
      setrlimit(RLIMIT_NOFILE, &limit);
      if (user != getuid() && setuid(user) != 0) _exit(9);
      std::vector<Fd> sockets;
      for (int i = 0; i < count; ++i) {
        const std::string name = name_of(getpid(), i);
        sockets.push_back(full ? listen_unix(name, 0) : listen_unix(name));
        if (full) sockets.push_back(connect_unix(name, Deadline::after(20s)));
      }
      others.reset();
      for (;;) pause();
    }
    others.reset();
    char byte = 0;
    // The process closes its end of the pipe once it listens.
    if (read(ready.get(), &byte, 1) != 0) throw std::runtime_error("read()");
  }
  ~SilentListener() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  pid_t pid() const { return pid_; }

 private:
  pid_t pid_ = -1;
};

TEST(JobSocket, a_name_that_another_user_made_hides_no_job) {
  if (getuid() != 0) GTEST_SKIP() << "becoming another user needs root";
  Job job("hidden-test");
  const int launcher = listed(job.id())["launcher"].get<int>();
  const auto like_its_own = [&](pid_t, int number) {
    return fmt::format("paceline-job/{}/2x2/{}", launcher,
                       std::string(16, number == 0 ? '0' : 'f'));
  };
  const SilentListener stranger(2, like_its_own, 65534);
  EXPECT_EQ(listed(job.id())["ranks"].size(), 2U);
  for (const int number : {0, 1}) {
    try {
      ask_job(like_its_own(0, number), "describe", Deadline::after(10s));
      ADD_FAILURE() << "a stranger was asked";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kSystem);
      EXPECT_THAT(error.what(), Says("jobs.held_by_another"));
    }
  }
  EXPECT_EQ(run_paceline({"stop", job.id()}).exit_code, 0);
}

// These listeners cannot be launchers: /proc shows that the pid in each name does not belong to the
// process that listens.
TEST(JobSocket, names_that_their_process_does_not_hold_are_not_asked) {
  Job job("held-test");
  const std::string own = mark_of(job);
  ASSERT_FALSE(own.empty());
  const pid_t launcher = launcher_of(own);
  const auto named = [](pid_t pid, int number) {
    return fmt::format("paceline-job/{}/2x4/{:016x}", pid, number);
  };
  const std::vector<std::pair<std::string, std::function<pid_t(int number)>>> rows = {
      {"under the launcher's pid", [&](int) { return launcher; }},
      {"under another process's pid", [](int) { return getppid(); }},
      {"under pids of no process", [](int number) { return (1 << 22) + 1 + number; }},
      {"under all pids", [](int number) { return 1 + number; }}};
  for (const auto& [kind, pid_of] : rows) {
    const SilentListener strangers(
        200, [&](pid_t, int number) { return named(pid_of(number), number); });
    const std::vector<std::string> found = find_own_marks(), all = find_marks();
    EXPECT_THAT(found, testing::Contains(own)) << kind;
    for (int number = 0; number < 200; ++number) {
      const std::string name = named(pid_of(number), number);
      EXPECT_THAT(found, Not(testing::Contains(name))) << kind;
      EXPECT_THAT(all, Not(testing::Contains(name))) << kind;
    }
  }
  EXPECT_EQ(run_paceline({"stop", job.id()}).exit_code, 0);
}

TEST(JobSocket, sockets_of_another_user_are_not_asked) {
  if (getuid() != 0) GTEST_SKIP() << "becoming another user needs root";
  // The first name has its own pid, the second one the pid of process 1.
  const auto named = [](pid_t pid, int number) {
    return fmt::format("paceline-job/{}/1x1/{:016x}", number == 0 ? pid : 1, 7);
  };
  const SilentListener stranger(2, named, 65534);
  EXPECT_THAT(find_own_marks(),
              testing::Contains(named(stranger.pid(), 0)));  // root sees the jobs of all users
  const pid_t user = fork();
  if (user == 0) {
    if (setuid(65533) != 0) _exit(9);
    int count = 0;
    for (const std::string& mark : find_own_marks()) {
      count += mark == named(stranger.pid(), 0) || mark == named(0, 1);
    }
    _exit(count);
  }
  int status = 0;
  ASSERT_EQ(waitpid(user, &status, 0), user);
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

// The queues of these sockets are full, so a connection to any of them would wait.
TEST(JobSocket, thousands_of_strangers_hide_no_job) {
  Job job("crowded-test");
  const SilentListener strangers(
      6000,
      [](pid_t pid, int number) {
        return fmt::format("paceline-job/{}/2x4/{:016x}", 1 + number, pid);
      },
      getuid(), /*full=*/true);
  const Outcome ps = run_paceline({"ps"});
  EXPECT_THAT(ps.out, HasSubstr("crowded-test")) << ps.err;
  const Outcome stop = run_paceline({"stop", job.id()});
  EXPECT_EQ(stop.exit_code, 0) << stop.err;
}

TEST(JobSocket, thousands_that_do_not_answer_cause_no_long_wait) {
  Job job("patient-test");
  const SilentListener crowd(3000, [](pid_t pid, int number) {
    return fmt::format("paceline-job/{}/0x0/{:016x}", pid, number);
  });
  const auto begin = std::chrono::steady_clock::now();
  const Outcome ps = run_paceline({"ps"});
  // This takes 5 s, unless the machine is busy.
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 60s);
  EXPECT_THAT(ps.out, HasSubstr("patient-test"));
  EXPECT_THAT(ps.err,
              // The message may also list launchers of other tests.
              testing::ContainsRegex(
                  fmt::format("no answer from launchers \\(pid ([0-9]+, )*{}", crowd.pid())));
  EXPECT_EQ(run_paceline({"stop", job.id()}).exit_code, 0);
}

TEST(JobSocket, is_asked_by_its_own_user_alone) {
  if (getuid() != 0) GTEST_SKIP() << "becoming another user needs root";
  Job job("private-test");
  const std::string name = mark_of(job);
  ASSERT_FALSE(name.empty());
  EXPECT_THAT(ask_job(name, "describe", Deadline::after(10s)), HasSubstr("private-test"));
  const pid_t stranger = fork();
  if (stranger == 0) {
    // This process does not check whose socket it is, so the launcher must refuse it.
    if (setuid(65534) != 0) _exit(9);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    name.copy(address.sun_path + 1, name.size());
    const int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
    if (connect(fd, reinterpret_cast<sockaddr*>(&address), length) != 0) _exit(8);
    if (send(fd, "stop\n", 5, MSG_NOSIGNAL) < 0) _exit(0);
    char byte = 0;
    _exit(read(fd, &byte, 1) > 0 ? 7 : 0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(stranger, &status, 0), stranger);
  EXPECT_EQ(WEXITSTATUS(status), 0);
  EXPECT_FALSE(listed(job.id()).is_null());  // the job was not stopped
  EXPECT_EQ(run_paceline({"stop", job.id()}).exit_code, 0);
}

TEST(JobSocket, takes_whatever_is_sent_to_it) {
  Job job("noise-test");
  const std::string name = mark_of(job);
  ASSERT_FALSE(name.empty());
  for (const std::string& request :
       {std::string(), std::string("nonsense"), std::string("crash"), std::string("crash x y"),
        std::string("crash 1 11"), std::string(100'000, 'x'), std::string("a\nb\nc")}) {
    try {
      EXPECT_EQ(ask_job(name, request, Deadline::after(10s)), "") << request.substr(0, 20);
    } catch (const Error& error) {
      // The launcher closed the connection while the request was being sent.
      EXPECT_EQ(error.code(), ErrorCode::kPeerLost);
    }
  }
  EXPECT_FALSE(listed(job.id()).is_null());
  EXPECT_EQ(run_paceline({"stop", job.id()}).exit_code, 0);
}

}  // namespace
}  // namespace paceline::launcher
