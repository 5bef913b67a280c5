// Programs that behave badly, and machines that give less than a job wants. They lead to a clear
// message and the right exit code, and leave nothing behind.

#include <filesystem>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <unistd.h>

#include "tests/harness/says.h"
#include "tests/harness/wait_until.h"
#include "tests/launcher/launch/paceline_process.h"

namespace paceline::launcher {
namespace {

using namespace std::chrono_literals;
using harness::Says;
using testing::HasSubstr;
using testing::Not;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

TEST(RunLimits, a_rank_that_closes_its_output_is_not_a_failure) {
  const Outcome outcome = run_paceline(
      {"run", "--nproc-per-node", "2", "sh", "-c", "exec >&- 2>&-; sleep 0.3; exit 0"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  const Outcome failure = run_paceline(
      {"run", "--nproc-per-node", "2", "sh", "-c", "exec >&- 2>&-; sleep 0.3; exit 6"});
  EXPECT_EQ(failure.exit_code, 6);
  EXPECT_THAT(failure.err, Says("run.wrote_nothing"));
}

TEST(RunLimits, a_gigabyte_in_one_line_keeps_the_launcher_small) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer keeps what was freed";
  const FreshDirectory logs;
  std::filesystem::create_symlink("/dev/null", logs.file("rank-001.log"));
  // Writes to stderr, which is a pipe, because a pseudo-terminal would take minutes on a busy
  // machine.
  PacelineProcess paceline({"run", "--nproc-per-node", "2", "--log-dir", logs.path(), "sh", "-c",
                            "[ $RANK = 0 ] && exit; exec >&2; head -c 1000000000 /dev/zero | "
                            "tr '\\0' x; echo; grep VmHWM /proc/$PPID/status; exit 7"});
  const Outcome outcome = paceline.wait(120s);
  EXPECT_EQ(outcome.exit_code, 7);
  EXPECT_THAT(outcome.err, HasSubstr("  | ...xxxx"));  // the end of the line
  EXPECT_LT(outcome.err.size(), 10'000U);
  const auto at = outcome.err.find("VmHWM:");
  ASSERT_NE(at, std::string::npos) << outcome.err;
  EXPECT_LT(std::stol(outcome.err.substr(at + 6)), 64 << 10);  // KiB, of the agent
}

TEST(RunLimits, escapes_of_a_failing_rank_are_shown_as_text) {
  const Outcome outcome = run_paceline(
      {"run", "--nproc-per-node", "2", "sh", "-c",
       "[ $RANK = 1 ] || sleep 60; printf '\\033]0;owned\\007\\033[2J\\n' >&2; exit 3"});
  EXPECT_EQ(outcome.exit_code, 3);
  EXPECT_THAT(outcome.err, HasSubstr("| \\x1b]0;owned\\x07\\x1b[2J"));
  EXPECT_THAT(outcome.err, Not(HasSubstr("\x1b")));
}

TEST(RunLimits, a_log_folder_without_permission_is_an_error_before_the_start) {
  if (getuid() != 0) GTEST_SKIP() << "becoming a user who may not write needs root";
  const FreshDirectory directory;  // only root may use it
  PacelineProcess paceline(
      {"--reuid=65534", "--regid=65534", "--clear-groups", PACELINE_COMMAND, "run",
       "--nproc-per-node", "2", "--log-dir", directory.file("logs"), "sh", "-c", "echo ran"},
      {}, "/usr/bin/setpriv");
  const Outcome outcome = paceline.wait();
  if (outcome.err.find("failed to execute") != std::string::npos) {
    GTEST_SKIP() << "nobody may not execute this build: " << outcome.err;
  }
  EXPECT_EQ(outcome.exit_code, 2) << outcome.err;
  EXPECT_EQ(outcome.out, "");
  EXPECT_THAT(outcome.err,
              Says("output.folder_not_made", directory.file("logs"), "Permission denied"));
}

// /dev/full accepts no byte, like a full disk.
TEST(RunLimits, lost_output_is_reported_once_kept_in_the_logs_and_not_a_success) {
  const auto run = [](const std::string& script, const std::string& logs) {
    PacelineProcess shell(
        {"-c", "exec " PACELINE_COMMAND " run " + logs + " sh -c '" + script + "' >/dev/full"}, {},
        "/bin/sh");
    const Outcome outcome = shell.wait();
    const auto at = outcome.err.find("; it is complete in ");
    std::string log;
    if (at != std::string::npos) {
      const std::string folder = outcome.err.substr(at + 20, outcome.err.find('\n', at) - at - 20);
      std::getline(std::ifstream(folder + "/rank-000.log"), log);
      EXPECT_THAT(lines_of(outcome.err), testing::Contains(Says("output.lost")).Times(1));
    }
    return std::pair(outcome, log);
  };
  const auto [lost, log] = run("echo one; sleep 0.3; echo two", "");
  EXPECT_EQ(lost.exit_code, 3);
  EXPECT_EQ(log, "one");
  EXPECT_THAT(lost.err, Says("output.lost", "stdout: No space left on device"));
  EXPECT_EQ(run("echo one; exit 7", "").first.exit_code, 7);
  EXPECT_EQ(run("exit 0", "").first.exit_code, 0);
  EXPECT_EQ(run("echo one >&2", "").first.exit_code, 0);
}

TEST(RunLimits, the_launcher_of_hosts_also_reports_lost_output) {
  PacelineProcess shell(
      {"-c", "exec " PACELINE_COMMAND " run --hosts localhost:1,127.0.0.1:1 echo one >/dev/full"},
      {}, "/bin/sh");
  const Outcome outcome = shell.wait();
  EXPECT_EQ(outcome.exit_code, 3) << outcome.err;
  EXPECT_THAT(outcome.err, Says("hosts.output_lost", "stdout: No space left on device"));
}

TEST(RunLimits, an_endless_line_among_other_ranks_keeps_the_launcher_small) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer keeps what was freed";
  const std::string command =
      "TMPDIR=/dev/null " PACELINE_COMMAND
      " run --nproc-per-node 2 --all-ranks sh -c '[ $RANK = 0 ] && exit; "
      "head -c 300000000 /dev/zero | tr \"\\0\" x; grep VmHWM /proc/$PPID/status >&2' "
      "2>&1 >/dev/null";
  PacelineProcess shell({"-c", command}, {}, "/bin/sh");
  const Outcome outcome = shell.wait(120s);
  EXPECT_EQ(outcome.exit_code, 0);
  const auto at = outcome.out.find("VmHWM:");
  ASSERT_NE(at, std::string::npos) << outcome.out;
  EXPECT_LT(std::stol(outcome.out.substr(at + 6)), 64 << 10);  // KiB, of the agent
}

TEST(RunLimits, too_few_descriptors_are_an_error_with_the_number_that_is_needed) {
  const Outcome few =
      PacelineProcess({"-c", "ulimit -n 64; exec " PACELINE_COMMAND " run touch ran"}, {},
                      "/bin/sh")
          .wait();
  EXPECT_EQ(few.exit_code, 3);
  EXPECT_THAT(few.err, Says("limits.files", 1, 135, 64));
  EXPECT_FALSE(std::filesystem::exists("ran"));
}

// The limit applies to the launcher's log files. Ranks inherit the limit, and no ignored signal.
TEST(RunLimits, a_limit_of_file_sizes_is_like_a_full_disk) {
  const FreshDirectory directory;
  const std::string command =
      "ulimit -f 1; exec " PACELINE_COMMAND " run --log-dir " + directory.file("logs") +
      " sh -c 'head -c 100000 /dev/zero | tr \\\\0 x; echo; grep SigIgn /proc/self/status'";
  const Outcome outcome = PacelineProcess({"-c", command}, {}, "/bin/sh").wait();
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr(std::string(100'000, 'x')));
  EXPECT_THAT(outcome.out, HasSubstr("SigIgn:\t0000000000000000"));
}

TEST(RunLimits, a_low_soft_limit_of_descriptors_is_raised_for_the_launcher_alone) {
  const Outcome outcome = PacelineProcess({"-c", "ulimit -Sn 64; exec " PACELINE_COMMAND
                                                 " run --nproc-per-node 2 sh -c 'ulimit -Sn'"},
                                          {}, "/bin/sh")
                              .wait();
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(outcome.out, "64\n");
}

// Logs and flight records share the disk. A rank would be killed if it wrote to a page of a record
// for which there is no space.
TEST(RunLimits, a_full_disk_under_logs_and_records_costs_warnings_and_no_rank) {
  if (getuid() != 0) GTEST_SKIP() << "a small file system needs root";
  const FreshDirectory directory;
  if (mount("tmpfs", directory.path().c_str(), "tmpfs", 0, "size=64k") != 0) {
    GTEST_SKIP() << "no file system can be mounted here";
  }
  const std::string script = "seq 30000 >&2; exec " RECORDED_PROGRAM " ends";
  const Outcome outcome = run_paceline(
      {"run", "--nproc-per-node", "2", "--log-dir", directory.file("logs"), "sh", "-c", script});
  umount2(directory.path().c_str(), MNT_DETACH);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err.substr(outcome.err.size() / 2);
  EXPECT_EQ(outcome.out, "waiting\n");
  EXPECT_THAT(outcome.err, Says("output.log_incomplete", "No space left on device"));
}

// A cgroup that allows `limit` processes. It has no path if none can be made.
class ProcessGroup {
 public:
  explicit ProcessGroup(int limit) {
    for (const char* folder : {"/sys/fs/cgroup/pids", "/sys/fs/cgroup"}) {
      const std::string path = std::string(folder) + "/paceline-test-" + std::to_string(getpid());
      std::error_code error;
      if (!std::filesystem::create_directory(path, error)) continue;
      path_ = path;
      std::ofstream setting(path + "/pids.max");
      if (setting << limit << std::flush) return;
      std::filesystem::remove(path, error);
      path_.clear();
    }
  }
  ~ProcessGroup() {
    if (path_.empty()) return;
    // Removing it fails until its last process, which has ended, is gone.
    std::error_code error;
    (void)harness::wait_until([&] { return std::filesystem::remove(path_, error); },
                              Deadline::after(std::chrono::seconds(5)));
  }
  std::string file(const std::string& name) const {
    return path_.empty() ? "" : path_ + "/" + name;
  }

 private:
  std::string path_;
};

TEST(RunLimits, a_limit_of_processes_is_an_error_that_says_so_and_leaves_no_process) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer has threads of its own";
  for (int limit = 1; limit <= 8; ++limit) {
    const ProcessGroup group(limit);
    if (group.file("pids.max").empty()) {
      GTEST_SKIP() << "no cgroup with a limit of processes can be made here";
    }
    PacelineProcess paceline(
        {"-c", "echo $$ > " + group.file("cgroup.procs") +
                   " && exec " PACELINE_COMMAND " run --nproc-per-node 4 sleep 0.5"},
        {}, "/bin/sh");
    const Outcome outcome = paceline.wait();
    if (outcome.exit_code != 0) {
      EXPECT_EQ(outcome.exit_code, 3) << limit << ": " << outcome.err;
      EXPECT_THAT(outcome.err, Says("limits.processes")) << limit;
    }
    EXPECT_TRUE(outcome.exit_code == 3 || limit > 6) << limit << ": " << outcome.exit_code;
  }
}

}  // namespace
}  // namespace paceline::launcher
