#pragma once

// A cgroup that limits the memory of a test's ranks.

#include <cstddef>
#include <fstream>
#include <string>

#include <sys/stat.h>
#include <unistd.h>

namespace paceline::harness {

// A new cgroup (v1) that limits the memory of the processes that enter it to `bytes`.
class SmallCgroup {
 public:
  explicit SmallCgroup(std::size_t bytes) {
    folder_ = "/sys/fs/cgroup/memory/paceline-test-" + std::to_string(getpid());
    is_made_ = mkdir(folder_.c_str(), 0755) == 0;
    is_made_ = is_made_ && write("memory.limit_in_bytes", bytes);
  }
  ~SmallCgroup() { rmdir(folder_.c_str()); }
  SmallCgroup(const SmallCgroup&) = delete;
  SmallCgroup& operator=(const SmallCgroup&) = delete;
  // False if the cgroup could not be made.
  bool is_made() const { return is_made_; }
  bool enter() const { return write("cgroup.procs", static_cast<std::size_t>(getpid())); }

 private:
  bool write(const std::string& file, std::size_t value) const {
    std::ofstream out(folder_ + "/" + file);
    out << value << std::flush;
    return out.good();
  }
  std::string folder_;
  bool is_made_ = false;
};

}  // namespace paceline::harness
