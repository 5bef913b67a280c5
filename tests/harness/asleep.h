#pragma once

// Waits until another thread of the test is blocked, that is, asleep in the kernel until another
// thread wakes it. (A thread no longer counts as asleep once a call that wakes it has returned.)

#include <atomic>
#include <fstream>
#include <string>

#include <gtest/gtest.h>
#include <unistd.h>

#include "tests/harness/wait_until.h"

namespace paceline::harness {

// True also if the thread has ended. `thread`: its gettid().
inline bool is_asleep(pid_t thread) {
  std::ifstream file("/proc/self/task/" + std::to_string(thread) + "/stat");
  std::string text;
  std::getline(file, text);
  const auto name_end = text.rfind(')');
  return name_end == std::string::npos || text.compare(name_end, 3, ") S") == 0;
}

inline void wait_until_asleep(pid_t thread) {
  EXPECT_TRUE(
      wait_until([&] { return is_asleep(thread); }, Deadline::after(std::chrono::seconds(20))));
}

// As above, for a thread that stores its gettid() in `thread` when it begins.
inline void wait_until_asleep(const std::atomic<pid_t>& thread) {
  EXPECT_TRUE(wait_until([&] { return thread != 0 && is_asleep(thread); },
                         Deadline::after(std::chrono::seconds(20))));
}

}  // namespace paceline::harness
