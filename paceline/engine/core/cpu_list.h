#pragma once

// Sets of cpus as text, the way the kernel and taskset write them: "0-3,8".

#include <optional>
#include <string>
#include <vector>

namespace paceline {

// Requires: ascending.
std::string format_cpu_list(const std::vector<int>& cpus);

// Ascending, each once. Nothing when the text is not such a list, or names a cpu above 65535.
std::optional<std::vector<int>> parse_cpu_list(const std::string& text);

}  // namespace paceline
