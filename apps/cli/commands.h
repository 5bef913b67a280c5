#pragma once

// The declarations of all commands of `paceline`, and the two functions that they share: say(), and
// guarded(), which turns an exception of a command into a message and an exit code.

#include <cstdio>
#include <functional>
#include <string>
#include <vector>

namespace paceline::apps {

// A line to stderr. A stderr that is closed or full is not a reason to fail: fmt::print would
// throw.
inline void say(const std::string& line) { std::fputs((line + "\n").c_str(), stderr); }

// The subcommands. Each takes the arguments behind its name and returns the exit code; a command
// line that cannot be carried out is a UsageError.

using Arguments = std::vector<std::string>;

int advise_command(const Arguments& arguments);
int run_command(const Arguments& arguments);
// Lists, checks, compares, converts and removes checkpoints.
int checkpoint_command(const Arguments& arguments);
// A script for bash, zsh or fish.
int completion_command(const Arguments& arguments);
int bench_command(const Arguments& arguments);
int doctor_command(const Arguments& arguments);
// The launcher's end on another host, which the launcher starts (launcher/hosts/remote_end.h). Not
// shown in the help.
int remote_agent_command(const Arguments& arguments);
int explain_command(const Arguments& arguments);
int logs_command(const Arguments& arguments);
int ps_command(const Arguments& arguments);
int stacks_command(const Arguments& arguments);
int stop_command(const Arguments& arguments);
// Writes a job for SLURM or Kubernetes.
int submit_command(const Arguments& arguments);
int timeline_command(const Arguments& arguments);
int top_command(const Arguments& arguments);
int topo_command(const Arguments& arguments);

// Runs `command`. Its exit code, or that of what it throws, which is printed behind `who`.
int guarded(const std::string& who, const std::function<int()>& command);

}  // namespace paceline::apps
