// The files in /dev/shm, and which of them a test left there.
#pragma once

#include <filesystem>
#include <set>
#include <string>

#include "tests/harness/wait_until.h"

namespace paceline::harness {

inline std::set<std::string> names_in(const char* directory) {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    names.insert(entry.path().filename());
  }
  return names;
}

// Files that UCX, Open MPI (4, 5), MPICH, torch and the stand-in of NCCL make while other tests
// run.
inline bool is_of_another_library(const std::string& name) {
  for (const char* const prefix :
       {"ucx_shm_posix_", "vader_segment.", "sm_segment.", "mpich", "torch_", "standin-nccl-"}) {
    if (name.starts_with(prefix)) return true;
  }
  return false;
}

// The files in /dev/shm that are not in `before`. Waits for up to 30 s until there are none,
// because other tests that run at the same time may have files there for a moment.
inline std::set<std::string> new_in_shared_memory(const std::set<std::string>& before) {
  std::set<std::string> left;
  const auto is_clean = [&] {
    left = names_in("/dev/shm");
    std::erase_if(left, [&](const std::string& name) {
      return before.contains(name) || is_of_another_library(name);
    });
    return left.empty();
  };
  (void)wait_until(is_clean, Deadline::after(std::chrono::seconds(30)));
  return left;
}

}  // namespace paceline::harness
