#pragma once

// The library's log: one line per message on stderr, with time, level and, once known, the rank.
// PACELINE_LOG_LEVEL sets the lowest level that is printed (trace, debug, info, warning, error,
// off; default warning).
//
// Thread safety: every function except write_to() may be called from any thread.

#include <string>

namespace paceline::log {

enum class Level { kDebug = 1, kInfo, kWarning, kError };  // spdlog's numbers

// Later lines carry "[rank R]"; -1 removes it.
void set_rank(int rank);
// The rank that was set last; -1 when there is none.
int rank();
void write(Level level, const std::string& message);

inline void debug(const std::string& message) { write(Level::kDebug, message); }
inline void info(const std::string& message) { write(Level::kInfo, message); }
inline void warning(const std::string& message) { write(Level::kWarning, message); }
inline void error(const std::string& message) { write(Level::kError, message); }

// Later lines are written to `fd`, which must stay open until the next call; STDERR_FILENO restores
// the initial output, stderr. A line for which a non-blocking descriptor has no room is lost.
// Requires: no other thread writes to the log during the call.
void write_to(int fd);

}  // namespace paceline::log
