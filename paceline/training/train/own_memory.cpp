#include "paceline/training/train/own_memory.h"

#include <algorithm>
#include <fstream>
#include <map>
#include <string>

namespace paceline::train {
namespace {

// The kilobytes behind each name of such a file, as bytes.
std::map<std::string, double> sizes_in(const char* path) {
  std::map<std::string, double> sizes;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    const auto colon = line.find(':');
    if (colon == std::string::npos || !line.ends_with(" kB")) continue;
    sizes[line.substr(0, colon)] = std::stod(line.substr(colon + 1)) * 1024;
  }
  return sizes;
}

}  // namespace

std::optional<OwnMemory> own_memory() {
  const auto rollup = sizes_in("/proc/self/smaps_rollup"), status = sizes_in("/proc/self/status");
  for (const char* name : {"Pss_Anon", "Pss_Shmem"}) {
    if (!rollup.contains(name)) return std::nullopt;
  }
  for (const char* name : {"RssFile", "VmRSS", "VmHWM"}) {
    if (!status.contains(name)) return std::nullopt;
  }
  return OwnMemory{.anonymous = rollup.at("Pss_Anon"),
                   .shared = rollup.at("Pss_Shmem"),
                   .files = status.at("RssFile"),
                   .resident = status.at("VmRSS"),
                   .peak_resident = std::max(status.at("VmHWM"), status.at("VmRSS"))};
}

}  // namespace paceline::train
