#pragma once

// Ends this process as a signal that it caught would have ended it. Whoever waits for a process
// distinguishes the two: after a Ctrl-C a shell goes on with its loop when a command exits,
// whatever the exit code, and ends the loop when SIGINT killed it; make removes half-made targets;
// systemd takes SIGTERM for a clean stop and exit code 143 for a failure.

namespace paceline::launcher {

// Flushes stdio, then dies of `signal`, without a core file. Where the kernel keeps that from
// happening, as for a container's first process, exits with 128 + `signal`.
[[noreturn]] void end_by_signal(int signal);

}  // namespace paceline::launcher
