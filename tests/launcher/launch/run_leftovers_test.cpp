// Jobs of `paceline run` leave nothing behind, whether many run at once or the launcher is killed.

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <memory>
#include <optional>
#include <set>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <unistd.h>

#include "paceline/engine/core/error.h"
#include "paceline/engine/core/system/socket.h"
#include "paceline/launcher/messages/running_jobs.h"

#include "tests/harness/wait_until.h"
#include "tests/launcher/launch/network_hosts.h"
#include "tests/launcher/launch/paceline_process.h"

namespace paceline::launcher {
namespace {

using namespace std::chrono_literals;
using testing::IsEmpty;

using Arguments = std::vector<std::string>;

// A test with a /dev/shm and a TMPDIR of its own.
class RunLeftovers : public testing::Test {
 protected:
  void SetUp() override {
    if (geteuid() != 0) GTEST_SKIP() << "a /dev/shm of its own needs root";
    if (unshare(CLONE_NEWNS) != 0 || mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0)
      GTEST_SKIP() << "mount namespaces are not allowed here";
    ASSERT_EQ(mount("tmpfs", "/dev/shm", "tmpfs", 0, "size=1g"), 0);
    mounted = true;
  }
  void TearDown() override {
    if (mounted) umount2("/dev/shm", MNT_DETACH);
  }

  std::unique_ptr<PacelineProcess> start(const Arguments& options, const Arguments& program) {
    Arguments arguments = {"run"};
    arguments.insert(arguments.end(), options.begin(), options.end());
    arguments.insert(arguments.end(), program.begin(), program.end());
    return std::make_unique<PacelineProcess>(
        arguments, PacelineProcess::Variables{{"TMPDIR", temporary.path()}});
  }
  std::vector<std::string> left() const {
    std::vector<std::string> names;
    for (const std::string& folder : {std::string("/dev/shm"), temporary.path()}) {
      for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
        names.push_back(entry.path().string());
      }
    }
    return names;
  }

  FreshDirectory temporary;
  bool mounted = false;
};

bool is_free(const std::string& port) {
  try {
    listen_tcp({"127.0.0.1", static_cast<std::uint16_t>(std::stoi(port))});
  } catch (const Error&) {
    return false;
  }
  return true;
}

template <class Condition>
bool comes_true(Condition condition) {
  return harness::wait_until(condition, Deadline::after(10s));
}

bool is_marked(const std::string& mark) {
  const auto marks = find_marks();
  return std::find(marks.begin(), marks.end(), mark) != marks.end();
}

// Each launch has its own group in shared memory, store, sockets and folder, at the same time as
// all other launches.
TEST_F(RunLeftovers, launches_at_once_share_nothing_and_leave_nothing) {
  constexpr int kLaunches = 40;
  const std::string script =
      "echo port ${PACELINE_STORE#*:}; echo port $MASTER_PORT; echo mark $PACELINE_JOB_SOCKET; "
      "[ $RANK = 0 ] && read go; exec " RECORDED_PROGRAM " ends";
  std::vector<std::unique_ptr<PacelineProcess>> launches;
  for (int i = 0; i < kLaunches; ++i) {
    launches.push_back(start({"--nproc-per-node", "2"}, {"sh", "-c", script}));
  }
  std::set<std::string> ports, marks;
  for (const auto& launch : launches) {
    for (const std::string& port : launch->wait_for_lines("port ", 2)) ports.insert(port);
    marks.insert(launch->wait_for_lines("mark ", 1).front());
  }
  EXPECT_EQ(ports.size(), 2U * kLaunches);
  EXPECT_EQ(marks.size(), 1U * kLaunches);
  std::set<std::string> folders;
  for (const std::string& path : left()) {
    if (path.ends_with("rank-000.log")) folders.insert(path);
  }
  EXPECT_EQ(folders.size(), 1U * kLaunches);
  for (const auto& launch : launches) launch->close_stdin();
  for (const auto& launch : launches) {
    const Outcome outcome = launch->wait(50s);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  }
  EXPECT_THAT(left(), IsEmpty());
  for (const std::string& mark : marks) EXPECT_FALSE(is_marked(mark));
  for (const std::string& port : ports) EXPECT_TRUE(is_free(port)) << port;
}

// The launcher is killed in the middle of a training with one rank stopped, while checkpoint
// memory, a job socket, a gauge and flight records are in use.
TEST_F(RunLeftovers, kill_9_of_the_launcher_of_ranks_that_train_leaves_nothing) {
  const FreshDirectory logs;
  for (const bool own_logs : {true, false}) {
    const std::string folder = logs.file("logs");
    Arguments options = {"--nproc-per-node", "2", "--all-ranks"};
    if (own_logs) options.insert(options.end(), {"--log-dir", folder});
    const auto paceline = start(
        options,
        {"sh", "-c",
         "trap '' TERM; echo pid $$; echo port ${PACELINE_STORE#*:}; "
         "echo mark $PACELINE_JOB_SOCKET; setsid sleep 1000 & echo pid $!; exec " RECORDED_PROGRAM
         " counts"});
    std::vector<std::string> pids = paceline->wait_for_lines("[0] pid ", 2);
    for (const std::string& pid : paceline->wait_for_lines("[1] pid ", 2)) pids.push_back(pid);
    const std::string port = paceline->wait_for_lines("[0] port ", 1).front();
    const std::string mark = paceline->wait_for_lines("[0] mark ", 1).front();
    paceline->wait_for_lines("[0] waiting", 1);
    const auto processes = open_pidfds(pids);
    kill(std::stoi(paceline->wait_for_lines("[1] pid ", 1).front()), SIGSTOP);
    EXPECT_TRUE(is_marked(mark));
    EXPECT_FALSE(is_free(port));
    paceline->send(SIGKILL);
    EXPECT_TRUE(all_gone(processes, 10s));                      // it takes 20 ms on an idle machine
    EXPECT_TRUE(comes_true([&] { return !is_marked(mark); }));  // the agent ends last
    EXPECT_TRUE(comes_true([&] { return left().empty(); })) << left().front();
    EXPECT_TRUE(comes_true([&] { return is_free(port); }));
    if (!own_logs) continue;
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
      EXPECT_EQ(entry.path().extension(), ".log");  // the logs, which the user asked for
    }
  }
}

TEST_F(RunLeftovers, kill_9_of_the_launcher_leaves_nothing_on_other_hosts) {
  const std::string reason = NetworkHosts::unavailable();
  if (!reason.empty()) GTEST_SKIP() << reason;
  const NetworkHosts hosts(2);
  // ssh runs in a session of its own. So, as with a real ssh, the other side notices only the
  // silence.
  const auto paceline = start(
      {"--hosts", hosts.list(1), "--ssh-command", "setsid --wait " + hosts.ssh(), "--all-ranks"},
      {"sh", "-c", "trap '' TERM HUP; echo pid $$; while :; do sleep 1; done"});
  std::vector<std::string> pids;
  for (int host = 0; host < 2; ++host) {
    const std::string prefix = fmt::format("[{}:{}] ", NetworkHosts::name(host), host);
    pids.push_back(paceline->wait_for_lines(prefix + "pid ", 1).front());
  }
  const auto ranks = open_pidfds(pids);
  EXPECT_FALSE(std::filesystem::is_empty(hosts.temporary()));
  paceline->send(SIGKILL);
  EXPECT_TRUE(all_gone(ranks, 10s));  // it takes 0.1 s on an idle machine
  EXPECT_TRUE(comes_true([&] { return std::filesystem::is_empty(hosts.temporary()); }));
  EXPECT_THAT(left(), IsEmpty());
}

}  // namespace
}  // namespace paceline::launcher
