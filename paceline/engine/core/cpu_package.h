#pragma once

// Which package (CPU package) processors belong to, as the kernel says it in sysfs: a file for each
// processor, far cheaper than a whole topology. Thread safety: pure.

#include <optional>
#include <span>
#include <string>

namespace paceline {

// The kernel's number of the one package that all of `cpus` are on; empty where they are on
// several, where there are none, and where the kernel does not say. `directory` holds
// cpuN/topology/.
std::optional<int> package_of(std::span<const int> cpus,
                              const std::string& directory = "/sys/devices/system/cpu");

}  // namespace paceline
