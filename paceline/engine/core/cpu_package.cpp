#include "paceline/engine/core/cpu_package.h"

#include <fstream>

#include <fmt/format.h>

namespace paceline {

std::optional<int> package_of(std::span<const int> cpus, const std::string& directory) {
  std::optional<int> common;
  for (const int cpu : cpus) {
    std::ifstream file(fmt::format("{}/cpu{}/topology/physical_package_id", directory, cpu));
    int package = -1;
    if (!(file >> package) || package < 0 || package != common.value_or(package)) return {};
    common = package;
  }
  return common;
}

}  // namespace paceline
