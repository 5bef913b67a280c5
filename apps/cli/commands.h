#pragma once

// Declares all commands of `paceline`, and two functions that they share: say(), and guarded(),
// which turns an exception into a message and an exit code.

#include <cstdio>
#include <functional>
#include <string>
#include <vector>

namespace paceline::apps {

// Prints a line to stderr. Ignores errors, for example if stderr is closed, where fmt::print would
// throw.
inline void say(const std::string& line) { std::fputs((line + "\n").c_str(), stderr); }

// The subcommands. Each takes the arguments after its name and returns the exit code. They throw
// UsageError for a command line that cannot be carried out.

using Arguments = std::vector<std::string>;

int advise_command(const Arguments& arguments);
int run_command(const Arguments& arguments);
// Lists, checks, compares, converts and removes checkpoints.
int checkpoint_command(const Arguments& arguments);
// Prints a completion script for bash, zsh or fish.
int completion_command(const Arguments& arguments);
int bench_command(const Arguments& arguments);
int doctor_command(const Arguments& arguments);
int gpu_check_command(const Arguments& arguments);
// The command that a launcher starts on another host (launcher/hosts/remote_end.h). It is not shown
// in the help.
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

// Runs `command` and returns its exit code. If it throws, prints the error after `who` and returns
// the exit code for that error.
int guarded(const std::string& who, const std::function<int()>& command);

}  // namespace paceline::apps
