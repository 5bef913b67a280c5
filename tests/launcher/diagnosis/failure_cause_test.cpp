#include <csignal>
#include <filesystem>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "paceline/launcher/diagnosis/failure_report.h"

#include "tests/harness/fresh_directory.h"
#include "tests/harness/says.h"

namespace paceline::launcher {
namespace {

using harness::Says;

constexpr std::uint64_t kMiB = 1 << 20;

EndEvidence killed() {
  EndEvidence evidence;
  evidence.end = {.rank = 1, .pid = 42, .signal = SIGKILL};
  evidence.before = {.cgroup_kills = 3, .machine_kills = 7};
  evidence.after = evidence.before;
  evidence.after.limit = 512 * kMiB;
  evidence.after.limit_source = "/sys/fs/cgroup/job/memory.max";
  evidence.after.machine_bytes = 8192 * kMiB;
  return evidence;
}

TEST(FailureCause, a_kill_that_the_cgroup_counted_is_out_of_memory_with_its_limit) {
  EndEvidence evidence = killed();
  evidence.after.cgroup_kills = 4;
  evidence.end.peak_bytes = 300 * kMiB;
  EXPECT_EQ(cause_of(evidence),
            "out of memory: the kernel killed it at the cgroup's limit of 512 MiB "
            "(/sys/fs/cgroup/job/memory.max); the rank used 300 MiB at its peak");
}

TEST(FailureCause, the_kernels_own_words_say_what_the_rank_used) {
  EndEvidence evidence = killed();
  evidence.kernel_kill = KernelKill{.pid = 42, .used_bytes = 400 * kMiB, .in_cgroup = true};
  EXPECT_THAT(cause_of(evidence), Says("cause.memory_of_rank", "400 MiB"));
  evidence.kernel_kill->in_cgroup = false;
  EXPECT_THAT(cause_of(evidence), Says("cause.memory_of_machine", "8.0 GiB"));
}

TEST(FailureCause, a_kill_that_the_kernel_did_not_count_came_from_outside) {
  EXPECT_THAT(cause_of(killed()), Says("cause.killed_from_outside"));
  EndEvidence blind = killed();
  blind.before = blind.after = {};
  EXPECT_EQ(cause_of(blind), "");  // empty, so the launcher prints the usual hint
}

TEST(FailureCause, a_killed_child_counts_as_well) {
  EndEvidence evidence = killed();
  evidence.end.signal = 0;
  evidence.end.exit_code = 137;
  EXPECT_EQ(cause_of(evidence), "");
  evidence.after.machine_kills = 8;
  EXPECT_THAT(cause_of(evidence), Says("cause.memory_of_machine"));
}

TEST(FailureCause, a_lack_of_memory_has_a_short_name) {
  EndEvidence evidence = killed();
  EXPECT_EQ(short_reason(cause_of(evidence)), "");
  evidence.after.cgroup_kills = 4;
  EXPECT_EQ(short_reason(cause_of(evidence)), "out of memory");
}

std::string cause_of_lines(int exit_code, int signal, const std::string& lines) {
  EndEvidence evidence;
  evidence.end = {.exit_code = exit_code, .signal = signal};
  evidence.last_lines = lines;
  return cause_of(evidence);
}

TEST(FailureCause, last_lines_tell_of_the_loader_exceptions_and_assertions) {
  EXPECT_THAT(cause_of_lines(127, 0,
                             "  | ./train: error while loading shared libraries: libfoo.so.1: "
                             "cannot open shared object file: No such file or directory\n"),
              Says("cause.library_missing", "libfoo.so.1"));
  EXPECT_THAT(
      cause_of_lines(127, 0, "./train: symbol lookup error: ./train: undefined symbol: f\n"),
      Says("cause.symbol_missing", "./train: undefined symbol: f"));
  EXPECT_THAT(cause_of_lines(1, 0,
                             "./train: /lib/x86_64-linux-gnu/libc.so.6: version `GLIBC_2.38' not "
                             "found (required by ./train)\n"),
              Says("cause.libraries_too_old", "GLIBC_2.38"));
  EXPECT_EQ(cause_of_lines(0, SIGABRT,
                           "  | epoch 1\n  | terminate called after throwing an instance of "
                           "'std::runtime_error'\n  |   what():  no such key\n"),
            "an uncaught exception: std::runtime_error: no such key");
  EXPECT_EQ(cause_of_lines(0, SIGABRT, "terminate called after throwing an instance of 'int'\n"),
            "an uncaught exception: int");
  EXPECT_THAT(cause_of_lines(0, SIGABRT,
                             "terminate called after throwing an instance of 'std::bad_alloc'\n"
                             "  what():  std::bad_alloc\n"),
              Says("cause.memory_refused", "std::bad_alloc: std::bad_alloc"));
  EXPECT_EQ(
      cause_of_lines(0, SIGABRT, "train: train.cpp:8: int main(): Assertion `n > 0' failed.\n"),
      "a failed assertion: n > 0");
  EXPECT_EQ(cause_of_lines(1, 0,
                           "Traceback (most recent call last):\n  File \"t.py\", line 1, in f\n"
                           "    g()\nValueError: no data\n"),
            "an uncaught Python exception: ValueError: no data");
  EXPECT_EQ(cause_of_lines(1, 0, "  | epoch 1\n  | error: rank 0: no file data.bin\n"),
            "rank 0: no file data.bin");
  for (const std::string line :
       {"free(): double free detected in tcache 2", "double free or corruption (!prev)",
        "*** stack smashing detected ***: terminated", "malloc(): corrupted top size",
        "corrupted size vs. prev_size"}) {
    EXPECT_THAT(cause_of_lines(0, SIGABRT, "  | epoch 1\n  | " + line + "\n"),
                Says("cause.memory_damaged", line));
    EXPECT_EQ(cause_of_lines(1, 0, line), "");
  }
  EXPECT_EQ(cause_of_lines(1, 0, "loss: nan\n"), "");
  EXPECT_EQ(cause_of_lines(1, 0, ""), "");
}

TEST(FailureCause, an_error_that_lists_differences_is_given_with_the_first) {
  EXPECT_EQ(
      cause_of_lines(2, 0,
                     "  | error: rank 0: these weights belong to another model:\n  |   fc1.weight: "
                     "Float [3] here, not given\n  |   fc2.weight: Float [4] here, not given\n"),
      "rank 0: these weights belong to another model: fc1.weight: Float [3] here, not given");
  EXPECT_EQ(cause_of_lines(1, 0, "error: these files:\nepoch 1\n"), "these files:");
  EXPECT_EQ(cause_of_lines(1, 0, "error: these files:\n"), "these files:");
  EXPECT_EQ(cause_of_lines(1, 0,
                           "Traceback (most recent call last):\n  File \"t.py\", line 1\n"
                           "RuntimeError: Error(s) in loading state_dict for Net:\n"
                           "\tsize mismatch for fc1.weight\n"),
            "an uncaught Python exception: RuntimeError: Error(s) in loading state_dict for Net: "
            "size mismatch for fc1.weight");
  EXPECT_EQ(cause_of_lines(0, SIGABRT,
                           "terminate called after throwing an instance of 'c10::Error'\n"
                           "  what():  bad sizes:\n  [3] and [4]\n"),
            "an uncaught exception: c10::Error: bad sizes: [3] and [4]");
}

TEST(FailureCause, a_crash_that_the_engine_has_explained_in_the_last_line_has_this_cause) {
  EXPECT_EQ(cause_of_lines(0, SIGSEGV, "  | epoch 1\n  | error: rank 0: w was written to\n"),
            "rank 0: w was written to");
  EXPECT_EQ(cause_of_lines(0, SIGSEGV, "  | error: the cache is empty\n  | epoch 1\n"), "");
}

TEST(FailureCause, a_crash_is_in_the_first_function_whose_line_is_known) {
  RankEnd end{.signal = SIGSEGV};
  EXPECT_THAT(cause_of_crash(end, {"step (train.cpp:40)", "main (train.cpp:88)"}),
              Says("cause.crash", "step (train.cpp:40)"));
  EXPECT_THAT(
      cause_of_crash(end, {"(anonymous namespace)::copy(int)", "main (train.cpp:88)"}),
      Says("cause.crash", "(anonymous namespace)::copy(int), called from main (train.cpp:88)"));
  EXPECT_THAT(cause_of_crash(end, {"step", "main"}), Says("cause.crash", "step"));
  end.signal = SIGFPE;
  EXPECT_EQ(cause_of_crash(end, {"divide (train.cpp:7)"}),
            "a crash in divide (train.cpp:7): an integer division by zero");
  EXPECT_EQ(cause_of_crash(end, {}), "");
  EXPECT_EQ(cause_of_crash({.exit_code = 1}, {"main"}), "");
}

TEST(FailureCause, a_bus_error_with_a_full_dev_shm_is_explained) {
  EndEvidence evidence;
  evidence.end.signal = SIGBUS;
  EXPECT_EQ(cause_of(evidence), "");
  evidence.shared = FileSystemSpace{64 * kMiB, 40 * kMiB};
  EXPECT_EQ(cause_of(evidence), "");
  evidence.shared->free_bytes = 0;
  EXPECT_THAT(cause_of(evidence), Says("cause.shared_memory_full", "0 MiB", "64 MiB"));
}

TEST(KernelLog, a_kill_is_read_from_the_kernels_words) {
  const auto kill = parse_kernel_kill(
      "3,812,5140900461,-;Memory cgroup out of memory: Killed process 711 (train) "
      "total-vm:410100kB, "
      "anon-rss:102400kB, file-rss:1024kB, shmem-rss:0kB, UID:0 pgtables:300kB oom_score_adj:0\n");
  ASSERT_TRUE(kill);
  EXPECT_EQ(kill->pid, 711);
  EXPECT_EQ(kill->used_bytes, 101 * kMiB);
  EXPECT_TRUE(kill->in_cgroup);
  EXPECT_FALSE(parse_kernel_kill("6,1,1,-;eth0: link up\n"));
  EXPECT_FALSE(parse_kernel_kill("3,1,1,-;Killed process x\n"));
}

class CounterFiles : public testing::Test {
 protected:
  void write(const std::string& name, const std::string& text) {
    const std::string path = root_.file(name);
    std::filesystem::create_directories(std::filesystem::path(path).parent_path());
    std::ofstream(path) << text;
  }
  MemoryCounters read() { return read_memory_counters(root_.file("cgroup"), root_.file("proc")); }
  FreshDirectory root_;
};

TEST_F(CounterFiles, of_cgroup_v2_with_the_smallest_limit_above) {
  write("proc/vmstat", "nr_free 1\noom_kill 5\n");
  write("proc/meminfo", "MemTotal:        2048 kB\n");
  write("proc/self/cgroup", "0::/a/b\n");
  write("cgroup/a/b/memory.events", "low 0\nhigh 0\nmax 9\noom 2\noom_kill 2\n");
  write("cgroup/a/b/memory.max", "max\n");
  write("cgroup/a/memory.max", "1048576\n");
  const MemoryCounters counters = read();
  EXPECT_EQ(counters.cgroup_kills, 2u);
  EXPECT_EQ(counters.machine_kills, 5u);
  EXPECT_EQ(counters.limit, 1u << 20);
  EXPECT_THAT(counters.limit_source, testing::EndsWith("cgroup/a/memory.max"));
  EXPECT_EQ(counters.machine_bytes, 2u << 20);
}

TEST_F(CounterFiles, of_cgroup_v1_whose_largest_number_means_no_limit) {
  write("proc/self/cgroup", "4:memory:/job\n0::/\n");
  write("cgroup/memory/job/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n");
  write("cgroup/memory/job/memory.limit_in_bytes", "9223372036854771712\n");
  EXPECT_EQ(read().cgroup_kills, 1u);
  EXPECT_FALSE(read().limit);
  write("cgroup/memory/job/memory.limit_in_bytes", "4096\n");
  EXPECT_EQ(read().limit, 4096u);
}

TEST_F(CounterFiles, that_are_missing_are_not_known) {
  const MemoryCounters counters = read();
  EXPECT_FALSE(counters.cgroup_kills);
  EXPECT_FALSE(counters.machine_kills);
  EXPECT_FALSE(counters.limit);
}

}  // namespace
}  // namespace paceline::launcher
