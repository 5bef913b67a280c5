#pragma once

// The launcher's remote end: the process that ssh (or srun) starts on another host as `paceline
// remote-agent`. It reads the job from its stdin, starts a child that launches this host's ranks,
// passes signals and rank 0's input on to the child, and sends back the ranks' output, the child's
// messages and the exit code, as frames.
//
//   paceline run --hosts a,b ─┬─ ssh a ┄ remote-agent ── supervisor ── agent ── ranks
//                             └─ ssh b ┄ remote-agent ── supervisor ── agent ── ranks
//
// When its stdin ends, or nothing has arrived for kSilenceLimit (until the job has arrived: for ten
// minutes), the launcher has ended or cannot be reached, and every process of the job on this host
// is ended. Killing this process with SIGKILL has the same effect.

#include <chrono>
#include <functional>
#include <string>

#include "paceline/launcher/messages/remote_frames.h"

namespace paceline::launcher {

// Both ends send a sign of life every kAliveInterval.
inline constexpr std::chrono::seconds kAliveInterval{5};
inline constexpr std::chrono::seconds kSilenceLimit{30};

// Runs this host's part of the job in a child with its own standard streams; returns the exit code.
// The launcher's own messages are written to `notices_fd` (launcher/output/console.h).
using RunPart = std::function<int(const RemoteJob& job, int notices_fd)>;

// Runs the remote end. Returns the exit code of this host's part of the job, or 128 + SIGHUP if the
// launcher was lost. Sends `version` first; the launcher refuses a version that differs from its
// own. Requires: no other threads.
int serve_remote_end(const std::string& version, const RunPart& run);

}  // namespace paceline::launcher
