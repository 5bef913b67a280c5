#include <chrono>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "paceline/engine/core/timing.h"

namespace paceline {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

std::uint64_t kernel_time() {
  return static_cast<std::uint64_t>(Clock::now().time_since_epoch() / 1ns);
}

// How far a reading lies outside the interval between two readings of the kernel's clock, in ns.
std::uint64_t error_of_a_reading() {
  const std::uint64_t before = kernel_time();
  const std::uint64_t time = record_time();
  const std::uint64_t after = kernel_time();
  if (time < before) return before - time;
  return time > after ? time - after : 0;
}

TEST(RecordClock, agrees_with_the_kernels_clock) {
  constexpr std::uint64_t kMaxError = 100'000;  // about 1,000 ns on an idle machine
  const auto end = Clock::now() + 300ms;
  int readings = 0;
  for (; Clock::now() < end; ++readings) ASSERT_LE(error_of_a_reading(), kMaxError);
  EXPECT_GT(readings, 100);
  for (const auto pause : {1ms, 20ms, 300ms}) {
    std::this_thread::sleep_for(pause);
    EXPECT_LE(error_of_a_reading(), kMaxError);
    EXPECT_LE(error_of_a_reading(), kMaxError);
  }
}

TEST(RecordClock, never_steps_back_in_a_thread) {
  const auto count = [] {
    std::uint64_t last = record_time();
    std::uint64_t steps_back = 0;
    for (int i = 0; i < 200'000; ++i) {
      const std::uint64_t now = record_time();
      if (now < last) ++steps_back;
      last = now;
    }
    return steps_back;
  };
  std::vector<std::jthread> threads;
  std::vector<std::uint64_t> steps_back(4);
  for (auto& result : steps_back) threads.emplace_back([&] { result = count(); });
  threads.clear();
  EXPECT_EQ(steps_back, std::vector<std::uint64_t>(4, 0));
}

}  // namespace
}  // namespace paceline
