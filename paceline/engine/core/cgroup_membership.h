#pragma once

// The control groups of a process: what the lines of /proc/PID/cgroup say.

#include <string>
#include <vector>

namespace paceline {

// One hierarchy, and the process's place in it.
struct CgroupMembership {
  std::string controllers;  // "cpu,cpuacct"; the unified hierarchy (cgroup v2) has none
  std::string path;         // below the hierarchy's mount

  bool is_unified() const { return controllers.empty(); }
  bool has(const std::string& controller) const;
};

// Of the text of such a file; lines that are none are left out.
std::vector<CgroupMembership> cgroup_memberships(const std::string& text);

}  // namespace paceline
