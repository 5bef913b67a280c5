#include "paceline/launcher/diagnosis/thread_census.h"

#include <atomic>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

namespace paceline::launcher {
namespace {

TEST(ThreadCensus, counts_threads_that_ran_and_no_others) {
  EXPECT_EQ(busy_threads({{1, 100}, {2, 100}}, {{1, 100}, {2, 300}, {3, 50}}, 1.0), 2);
  // A hundredth of a second of cpu time in ten seconds.
  EXPECT_EQ(busy_threads({{1, 100}}, {{1, 101}}, 10.0), 0);
  EXPECT_EQ(busy_threads({}, {}, 1.0), 0);
}

TEST(ThreadCensus, sees_every_thread_of_this_process) {
  std::thread([] {}).join();  // with the first thread, a sanitizer starts one of its own
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

}  // namespace
}  // namespace paceline::launcher
