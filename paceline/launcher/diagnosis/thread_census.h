#pragma once

// What a running rank really computes with, seen from outside: which of its threads are busy, and
// which BLAS it has loaded. A number of threads in a variable is a wish; some libraries ignore it.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <sys/types.h>

namespace paceline::launcher {

// The process first, then its children and theirs.
std::vector<pid_t> family_of(pid_t pid);

// Memory of all these processes, pages that several of them share counted once.
std::uint64_t memory_of(const std::vector<pid_t>& processes);

// Cpu time of each thread of a process and its descendants, in clock ticks, by thread id. Empty
// when the process is gone.
using ThreadTimes = std::map<pid_t, long>;
ThreadTimes thread_times(pid_t pid);

// The threads that ran for at least a fiftieth of the `seconds` between two looks.
int busy_threads(const ThreadTimes& before, const ThreadTimes& after, double seconds);

// True for the path of the reference BLAS, which computes with one thread and without vector units.
bool is_reference_blas(const std::string& path);
// The reference BLAS's path when the process or one of its descendants has it loaded.
std::optional<std::string> loaded_reference_blas(pid_t pid);

}  // namespace paceline::launcher
