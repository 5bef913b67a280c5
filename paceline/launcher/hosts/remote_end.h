#pragma once

// The end of a launcher on another host: the process that ssh (or srun) starts there as `paceline
// remote-agent`. It takes the job from its stdin, starts a child that launches this host's ranks,
// passes signals and rank 0's input on to it, and sends back the ranks' output, the child's words
// and the exit code as frames.
//
//   paceline run --hosts a,b ─┬─ ssh a ┄ remote-agent ── supervisor ── agent ── ranks
//                             └─ ssh b ┄ remote-agent ── supervisor ── agent ── ranks
//
// When its stdin ends, or nothing has arrived for kSilenceLimit, the launcher is gone or out of
// reach, and every process of the job on this host is ended. kill -9 of this process does the same.

#include <chrono>
#include <functional>
#include <string>

#include "paceline/launcher/messages/remote_frames.h"

namespace paceline::launcher {

// Both sides give a sign of life every kAliveInterval.
inline constexpr std::chrono::seconds kAliveInterval{5};
inline constexpr std::chrono::seconds kSilenceLimit{30};

// Runs in a child, with stdin, stdout and stderr of its own and `notices_fd` for the launcher's
// words (launcher/output/console.h); returns the exit code.
using RunPart = std::function<int(const RemoteJob& job, int notices_fd)>;

// Returns the exit code of the job's part, or 128 + SIGHUP when the launcher was lost. Sends
// `version` first; the launcher refuses another version than its own. Requires: no other threads.
int serve_remote_end(const std::string& version, const RunPart& run);

}  // namespace paceline::launcher
