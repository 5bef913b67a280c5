#pragma once

// Where this process runs, as far as it decides how two processes can reach each other.

#include <string>
#include <vector>

namespace paceline {

// Equal for two processes exactly when Unix sockets connect them: the kernel's boot id and the
// network namespace.
std::string host_token();
// Different for any two processes, also for a child after fork().
std::string process_token();
std::string host_name();
// The numbers of the processors this thread may run on, ascending.
std::vector<int> allowed_cpus();

}  // namespace paceline
