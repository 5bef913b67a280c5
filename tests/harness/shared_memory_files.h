// What lies in /dev/shm, and what a test left there.
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

// What is in /dev/shm and was not `before`, once it is gone or 30 s later: tests of other libraries
// that run at the same time have files there too, for as long as they run. What a rank of another
// test that was killed over UCX's shared memory leaves does not count.
inline std::set<std::string> new_in_shared_memory(const std::set<std::string>& before) {
  std::set<std::string> left;
  const auto is_clean = [&] {
    left = names_in("/dev/shm");
    std::erase_if(left, [&](const std::string& name) {
      return before.contains(name) || name.starts_with("ucx_shm_posix_");
    });
    return left.empty();
  };
  (void)wait_until(is_clean, Deadline::after(std::chrono::seconds(30)));
  return left;
}

}  // namespace paceline::harness
