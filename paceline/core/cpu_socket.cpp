#include "paceline/core/cpu_socket.h"

#include <fstream>

#include <fmt/format.h>

namespace paceline {

std::optional<int> socket_of(std::span<const int> cpus, const std::string& directory) {
  std::optional<int> common;
  for (const int cpu : cpus) {
    std::ifstream file(fmt::format("{}/cpu{}/topology/physical_package_id", directory, cpu));
    int socket = -1;
    if (!(file >> socket) || socket < 0 || socket != common.value_or(socket)) return {};
    common = socket;
  }
  return common;
}

}  // namespace paceline
