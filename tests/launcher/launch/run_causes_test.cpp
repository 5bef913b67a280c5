// How `paceline run` reports the end of a real rank: where it was, and why it ended.

#include <csignal>
#include <filesystem>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/harness/says.h"
#include "tests/harness/wait_until.h"
#include "tests/launcher/launch/paceline_process.h"

namespace paceline::launcher {
namespace {

using harness::Says;
using testing::AllOf;
using testing::Contains;
using testing::HasSubstr;
using testing::Not;

// Without these options a sanitizer would handle the signals itself.
const PacelineProcess::Variables kNoSanitizer = {
    {"ASAN_OPTIONS",
     "handle_segv=0:handle_sigbus=0:handle_sigfpe=0:handle_sigill=0:handle_abort=0:"
     "detect_leaks=0"},
    {"UBSAN_OPTIONS", "handle_segv=0"},
    {"TSAN_OPTIONS", "handle_segv=0:handle_sigbus=0:handle_sigfpe=0"}};

std::vector<std::string> crash(const std::string& how, const char* ranks = "2") {
  return {"run", "--nproc-per-node", ranks, CRASHING_PROGRAM, how};
}

// The innermost frame in the report.
std::string first_frame(const std::string& text) {
  const auto at = text.find("    #0  ");
  return at == std::string::npos ? "" : text.substr(at + 8, text.find('\n', at) - at - 8);
}

TEST(RunCauses, a_segmentation_fault_is_shown_with_the_names_of_functions) {
  const Outcome outcome = run_paceline(crash("null"), kNoSanitizer);
  EXPECT_EQ(outcome.exit_code, 139);
  EXPECT_THAT(outcome.err, Says("run.first_failure", 1, "killed by SIGSEGV"));
  EXPECT_THAT(first_frame(outcome.err), HasSubstr("write_to_nowhere")) << outcome.err;
  EXPECT_THAT(outcome.err, Says("cause.crash", first_frame(outcome.err)));
  EXPECT_THAT(outcome.err, AllOf(HasSubstr("compute_loss"), HasSubstr("train_step")));
  EXPECT_THAT(outcome.err, HasSubstr("main"));
  EXPECT_THAT(lines_of(outcome.err), Contains(Says("run.first_failure")).Times(1));
}

TEST(RunCauses, threads_overflows_divisions_and_instructions_are_shown_as_well) {
  for (const auto& [how, code, function] :
       std::vector<std::tuple<std::string, int, std::string>>{{"thread", 139, "write_to_nowhere"},
                                                              {"overflow", 139, "call_without_end"},
                                                              {"zero", 136, "divide"},
                                                              {"illegal", 132, "run_kernel"}}) {
    const Outcome outcome = run_paceline(crash(how), kNoSanitizer);
    EXPECT_EQ(outcome.exit_code, code) << how;
    EXPECT_THAT(first_frame(outcome.err), HasSubstr(function)) << how << outcome.err;
    EXPECT_THAT(outcome.err, HasSubstr("  cause: a crash in " + first_frame(outcome.err)));
  }
}

// Rank 1 takes a while to die, because its memory is freed first. Rank 0 sees that and exits
// earlier.
constexpr const char* kSlowDeath = R"py(
import os, signal, sys
name = sys.argv[1] + "/pid"
if os.environ["RANK"] == "1":
    memory = bytearray(b"1") * (1 << 29)
    with open(name + ".new", "w") as file:
        file.write(str(os.getpid()))
    os.rename(name + ".new", name)
    os.kill(os.getpid(), signal.SIGKILL)
while not os.path.exists(name):
    pass
try:
    stat = os.open(f"/proc/{open(name).read()}/stat", os.O_RDONLY)
    while not int(os.pread(stat, 4096, 0).rpartition(b")")[2].split()[6]) & 4:
        pass
except OSError:
    pass
os._exit(5)
)py";

TEST(RunCauses, a_rank_that_is_still_dying_comes_before_one_that_noticed_and_exited) {
  const FreshDirectory folder;
  const Outcome outcome = run_paceline(
      {"run", "--nproc-per-node", "2", "/usr/bin/python3", "-c", kSlowDeath, folder.path()});
  EXPECT_EQ(outcome.exit_code, 137) << outcome.err;
  EXPECT_THAT(outcome.err, Says("run.first_failure", 1, "killed by SIGKILL"));
  EXPECT_THAT(outcome.err, Says("run.followers", "rank 0", "exit code 5"));
}

// Each rank runs under a wrapper that passes its exit code on, with a delay if the rank was killed.
constexpr const char* kWrapped = R"py(
import os, subprocess, sys, time
code = subprocess.run(sys.argv[1:], close_fds=False).returncode
time.sleep(0.1 if code == -9 else 0)
sys.exit(code & 255)
)py";

TEST(RunCauses, a_rank_that_was_killed_behind_a_wrapper_comes_before_one_that_noticed) {
  const Outcome outcome = run_paceline({"run", "--nproc-per-node", "2", "/usr/bin/python3", "-c",
                                        kWrapped, RECORDED_PROGRAM, "dies"},
                                       kNoSanitizer);
  EXPECT_EQ(outcome.exit_code, 247) << outcome.err;
  EXPECT_THAT(outcome.err, Says("run.first_failure", 1, "exit code 247"));
  EXPECT_THAT(outcome.err, Says("run.followers", "rank 0"));
}

TEST(RunCauses, an_uncaught_exception_is_shown_with_its_text_and_where_it_was_thrown) {
  const Outcome outcome = run_paceline(crash("throws"), kNoSanitizer);
  EXPECT_EQ(outcome.exit_code, 1);
  constexpr const char* kVerdict = "rank 1: std::runtime_error: no such key: learning_rate";
  std::vector<std::string> report = lines_of(outcome.err);
  while (!report.empty() &&
         !testing::Value(report.front(), Says("run.first_failure", 1, "exit code 1"))) {
    report.erase(report.begin());
  }
  ASSERT_GT(report.size(), 1U) << outcome.err;
  EXPECT_THAT(report[1], Says("cause.given", kVerdict));
  EXPECT_THAT(report, Contains(HasSubstr(kVerdict)).Times(1));
  EXPECT_THAT(first_frame(outcome.err), HasSubstr("read_config")) << outcome.err;
}

TEST(RunCauses, a_failed_assertion_is_shown_with_its_text) {
  const Outcome outcome = run_paceline(crash("asserts"), kNoSanitizer);
  EXPECT_EQ(outcome.exit_code, 134);
  EXPECT_THAT(outcome.err, Says("cause.failed_assertion", "value < 0"));
  EXPECT_THAT(first_frame(outcome.err), HasSubstr("check_loss")) << outcome.err;
}

#ifndef __SANITIZE_ADDRESS__
TEST(RunCauses, damaged_memory_is_told_from_an_exception) {
  const Outcome outcome = run_paceline(crash("frees"), kNoSanitizer);
  EXPECT_EQ(outcome.exit_code, 134);
  EXPECT_THAT(outcome.err, Says("cause.damaged_memory", "free(): double free"));
  EXPECT_THAT(outcome.err, HasSubstr("free_batch"));
}
#endif

TEST(RunCauses, a_programs_own_handler_is_left_alone) {
  const Outcome outcome = run_paceline(crash("handled"), kNoSanitizer);
  EXPECT_EQ(outcome.exit_code, 9);
  EXPECT_EQ(first_frame(outcome.err), "");
}

TEST(RunCauses, a_variable_switches_the_report_off) {
  auto variables = kNoSanitizer;
  variables["PACELINE_CRASH_REPORT"] = "0";
  const Outcome outcome = run_paceline(crash("null"), variables);
  EXPECT_EQ(outcome.exit_code, 139);
  EXPECT_EQ(first_frame(outcome.err), "");
  EXPECT_THAT(outcome.err, Says("hint.memory_error"));
}

TEST(RunCauses, a_missing_shared_library_is_named) {
  const FreshDirectory directory;
  const std::string build =
      "cd " + directory.path() +
      " && echo 'int f() { return 0; }' > lib.c && echo 'int f(); int main() { "
      "return f(); }' > main.c && cc -shared -fPIC lib.c -o libgone.so && cc "
      "main.c -L. -lgone -o program && rm libgone.so";
  ASSERT_EQ(std::system(build.c_str()), 0);
  const Outcome outcome = run_paceline({"run", "--nproc-per-node", "2", directory.file("program")});
  EXPECT_EQ(outcome.exit_code, 127);
  EXPECT_THAT(outcome.err, Says("cause.library_missing", "libgone.so"));
}

TEST(RunCauses, a_kill_by_hand_is_told_from_a_lack_of_memory) {
  const Outcome outcome = run_paceline({"run", "sh", "-c", "kill -9 $$"});
  EXPECT_EQ(outcome.exit_code, 137);
  EXPECT_THAT(outcome.err, Says("cause.killed_from_outside"));
}

TEST(RunCauses, a_rank_that_leaves_while_others_wait_is_named) {
  const Outcome outcome = run_paceline(crash("leaves", "3"), kNoSanitizer);
  EXPECT_EQ(outcome.exit_code, 5);
  EXPECT_THAT(outcome.err, Says("run.ended_before", "rank 1"));
  // This text comes from the flight records.
  EXPECT_THAT(outcome.err, Says("records.ended_outside", 1));
  EXPECT_THAT(outcome.err, Not(Says("records.died")));
}

// A cgroup with a memory limit. It has no path if none can be made.
class MemoryGroup {
 public:
  explicit MemoryGroup(std::size_t limit) {
    for (const auto& [folder, file] : {std::pair{"/sys/fs/cgroup/memory", "memory.limit_in_bytes"},
                                       std::pair{"/sys/fs/cgroup", "memory.max"}}) {
      const std::string path = std::string(folder) + "/paceline-test-" + std::to_string(getpid());
      std::error_code error;
      if (!std::filesystem::create_directory(path, error)) continue;
      path_ = path;
      std::ofstream setting(path + "/" + file);
      if (setting << limit << std::flush) return;
      std::filesystem::remove(path, error);
      path_.clear();
    }
  }
  ~MemoryGroup() {
    if (path_.empty()) return;
    // Removing it fails until its last process, which has ended, is gone.
    std::error_code error;
    (void)harness::wait_until([&] { return std::filesystem::remove(path_, error); },
                              Deadline::after(std::chrono::seconds(5)));
  }
  std::string processes() const { return path_.empty() ? "" : path_ + "/cgroup.procs"; }

 private:
  std::string path_;
};

TEST(RunCauses, an_out_of_memory_kill_is_explained_with_the_limit) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer needs more memory";
#endif
  const MemoryGroup group(200 << 20);
  if (group.processes().empty()) GTEST_SKIP() << "no cgroup with a memory limit can be made here";
  PacelineProcess paceline({"-c", "echo $$ > " + group.processes() +
                                      " && exec " PACELINE_COMMAND
                                      " run --nproc-per-node 2 " CRASHING_PROGRAM " memory"},
                           kNoSanitizer, "/bin/sh");
  const Outcome outcome = paceline.wait();
  EXPECT_EQ(outcome.exit_code, 137) << outcome.err;
  EXPECT_THAT(outcome.err, Says("run.first_failure", 1, "killed by SIGKILL"));
  EXPECT_THAT(outcome.err, Says("cause.cgroup_limit", "200 MiB"));
  EXPECT_THAT(outcome.err, testing::ContainsRegex("\\(/sys/fs/cgroup/[^\n]* [12][0-9][0-9] MiB"));
}

TEST(RunCauses, a_full_dev_shm_is_named) {
  if (getuid() != 0) GTEST_SKIP() << "mounting a small /dev/shm needs root";
  PacelineProcess paceline({"-m", "sh", "-c",
                            "mount -t tmpfs -o size=8m tmpfs /dev/shm && exec " PACELINE_COMMAND
                            " run " CRASHING_PROGRAM " shm"},
                           kNoSanitizer, "/usr/bin/unshare");
  const Outcome outcome = paceline.wait();
  if (outcome.exit_code == 1) GTEST_SKIP() << "no mount namespace here: " << outcome.err;
  EXPECT_EQ(outcome.exit_code, 135) << outcome.err;
  EXPECT_THAT(outcome.err, Says("cause.shared_memory_full", "0 MiB", "8 MiB"));
  EXPECT_THAT(outcome.err, HasSubstr("fill_shared_memory"));
}

}  // namespace
}  // namespace paceline::launcher
