#include "paceline/engine/core/cgroup_membership.h"

#include <sstream>

namespace paceline {

bool CgroupMembership::has(const std::string& controller) const {
  return ("," + controllers + ",").find("," + controller + ",") != std::string::npos;
}

std::vector<CgroupMembership> cgroup_memberships(const std::string& text) {
  std::vector<CgroupMembership> memberships;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    // hierarchy:controllers:path
    const auto first = line.find(':');
    const auto second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    memberships.push_back({line.substr(first + 1, second - first - 1), line.substr(second + 1)});
  }
  return memberships;
}

}  // namespace paceline
