#include "paceline/launch/thread_census.h"

#include <atomic>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "paceline/core/topology.h"

#include "tests/launch/paceline_process.h"

namespace paceline::launch {
namespace {

TEST(ThreadCensus, counts_threads_that_ran_and_no_others) {
  EXPECT_EQ(busy_threads({{1, 100}, {2, 100}}, {{1, 100}, {2, 300}, {3, 50}}, 1.0), 2);
  EXPECT_EQ(busy_threads({{1, 100}}, {{1, 101}}, 10.0), 0);  // a hundredth of a second in ten
  EXPECT_EQ(busy_threads({}, {}, 1.0), 0);
}

TEST(ThreadCensus, sees_every_thread_of_this_process) {
  std::thread([] {}).join();  // a sanitizer starts a thread of its own with the first
  const std::size_t before = thread_times(getpid()).size();
  std::atomic<bool> stop = false;
  {
    std::vector<std::jthread> threads;
    for (int i = 0; i < 3; ++i) {
      threads.emplace_back([&] { stop.wait(false); });
    }
    EXPECT_EQ(thread_times(getpid()).size(), before + 3);
    stop = true;
    stop.notify_all();
  }
  EXPECT_THAT(thread_times(0x3fffffff), testing::IsEmpty());
}

TEST(ThreadCensus, knows_the_reference_blas_by_its_path) {
  EXPECT_TRUE(is_reference_blas("/usr/lib/x86_64-linux-gnu/blas/libblas.so.3.11.0"));
  EXPECT_FALSE(is_reference_blas("/usr/lib/x86_64-linux-gnu/openblas-pthread/libblas.so.3"));
  EXPECT_FALSE(is_reference_blas("/usr/lib/x86_64-linux-gnu/blis-openmp/libblas.so.4"));
  EXPECT_FALSE(is_reference_blas("/usr/lib/x86_64-linux-gnu/libcblas.so.3"));
  EXPECT_FALSE(loaded_reference_blas(getpid()).has_value());
}

TEST(RankWatch, too_many_busy_threads_are_said_while_the_job_runs) {
  const std::string cpu = std::to_string(discover_topology().cpus().front());
  const Outcome outcome =
      run_paceline({"run", "--bind", "map:" + cpu, "--threads-per-rank", "1", "sh", "-c",
                    "for i in 1 2 3 4 5 6; do (while :; do :; done) & done; sleep 8"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.err, testing::HasSubstr("rank 0 keeps 6 threads busy on 1 cpu, and was told "
                                              "to compute with 1"));
}

}  // namespace
}  // namespace paceline::launch
