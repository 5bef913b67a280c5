#pragma once

// Where this process runs, as far as it decides how two processes can reach each other.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <sys/types.h>

namespace paceline {

// Equal for two processes exactly when Unix sockets connect them: the kernel's boot id and the
// network namespace.
std::string host_token();
// Different for any two processes, also for a child after fork().
std::string process_token();
std::string host_name();
// Different after every start of the machine.
std::string boot_id();
// Numbers of processes mean the same in two processes with the same one.
std::string pid_namespace();

struct ProcessStatus {
  char state = '?';               // as /proc/PID/stat says: R, S, T (stopped), Z (ended), ...
  std::uint64_t start_ticks = 0;  // clock ticks after boot; with the number it names a process
};
// Empty when there is no such process.
std::optional<ProcessStatus> process_status(pid_t pid);
// The numbers of the processors this thread may run on, ascending.
std::vector<int> allowed_cpus();

}  // namespace paceline
