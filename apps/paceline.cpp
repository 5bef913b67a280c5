// The command `paceline`: finds the subcommand and turns errors into messages and exit codes.

#include <array>
#include <csignal>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "paceline/engine/core/error.h"
#include "paceline/engine/core/error_text.h"
#include "paceline/engine/core/system/io.h"

#include "apps/cli/commands.h"
#include "apps/cli/option_value.h"
#include "apps/cli/own_program.h"
#include "apps/cli/suggestion.h"

namespace paceline::apps {

namespace {

// Signals that may have been ignored when the command was started (by nohup, or in the background
// of a script). A library may install its own handler for such a signal before main(): UCX, which
// some MPIs use, does so for SIGHUP.
constexpr std::array kSignals = {SIGHUP, SIGINT, SIGQUIT, SIGTSTP};

std::array<bool, kSignals.size()> were_ignored{};

void note_ignored_signals(int, char**, char**) {
  for (std::size_t i = 0; i < kSignals.size(); ++i) {
    struct sigaction action {};
    were_ignored[i] = sigaction(kSignals[i], nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
  }
}

// The loader calls this function before the constructors of any library.
[[gnu::section(".preinit_array"),
  gnu::used]] void (*const kNoteBeforeConstructors)(int, char**, char**) = note_ignored_signals;

// Ignores again the signals that were ignored when the process began. Call this before there are
// other threads.
void restore_ignored_signals() {
  for (std::size_t i = 0; i < kSignals.size(); ++i) {
    if (were_ignored[i]) std::signal(kSignals[i], SIG_IGN);
  }
}

struct Command {
  const char* name;
  int (*run)(const Arguments&);
  const char* summary;  // for the help; null: not shown
};

constexpr Command kCommands[] = {
    {"run", run_command, "start a program as several ranks that train together"},
    {"submit", submit_command, "write a job for SLURM or Kubernetes from the same flags"},
    {"advise", advise_command,
     "try your program with several ranks and threads, recommend the best"},
    {"topo", topo_command, "draw this machine, and where ranks would run on it"},
    {"bench", bench_command, "measure collectives or calls, alone or against other libraries"},
    {"doctor", doctor_command, "report what this machine and this build can do"},
    {"gpu-check", gpu_check_command,
     "check on this machine's GPUs what Paceline does with them, and write a report"},
    {"checkpoint", checkpoint_command, "list, check, compare and convert checkpoints"},
    {"completion", completion_command, "print a script that completes commands in your shell"},
    {"remote-agent", remote_agent_command, nullptr},
    {"explain", explain_command, "report what the ranks of a job did last, and which are missing"},
    {"timeline", timeline_command, "join the timelines of ranks into one trace for Perfetto"},
    {"ps", ps_command, "list your jobs on this machine"},
    {"top", top_command, "show a job's ranks live: steps, cpu, memory, waiting"},
    {"logs", logs_command, "show the output of a job's ranks"},
    {"stop", stop_command, "end a job cleanly"},
    {"stacks", stacks_command, "print the call stack of every thread of a running job"},
};

void print_help() {
  fmt::print("Usage: paceline COMMAND [options]\n\nDistributed training for C++.\n\nCommands:\n");
  for (const Command& command : kCommands) {
    if (command.summary != nullptr) fmt::print("  {:<10} {}\n", command.name, command.summary);
  }
  fmt::print(
      "\nOptions:\n  -h,--help  this text; paceline help COMMAND for a command\n"
      "  --version  version, compiler, features\n\n"
      "Examples:\n  paceline doctor\n  paceline bench all_reduce\n  paceline run --nproc-per-node "
      "2 ./train --epochs 3\n");
}

constexpr const char* kSeeHelp = "; see paceline --help";

[[noreturn]] void refuse_unknown(const std::string& name) {
  std::vector<std::string> known = {"--help", "--version"};
  for (const Command& command : kCommands) {
    if (command.summary != nullptr) known.emplace_back(command.name);
  }
  if (name.starts_with("-")) {
    const std::string suggestion = did_you_mean(name, known);
    const char* const advice = suggestion.empty() ? "; options go after the command" : "";
    throw UsageError(fmt::format("unknown option {}{}{}{}", name, suggestion, advice, kSeeHelp));
  }
  const auto advice = [&]() -> std::string {
    if (name.find('/') != std::string::npos) return "; to start a program: paceline run " + name;
    const std::string meant = command_meant_by(name, known);
    return meant.empty() ? "" : "; did you mean " + meant + "?";
  }();
  throw UsageError(fmt::format("unknown command '{}'{}{}", name, advice, kSeeHelp));
}

int dispatch(const Arguments& arguments) {
  if (arguments.empty()) {
    print_help();
    return kExitUsage;
  }
  const std::string& name = arguments.front();
  if (name == "--help" || name == "-h" || name == "help") {
    const bool of_command =
        arguments.size() > 1 && !arguments[1].starts_with("-") && arguments[1] != "help";
    if (of_command) return dispatch({arguments[1], "--help"});
    print_help();
    return 0;
  }
  if (name == "--version") {
    fmt::print("{}\n", version_text());
    return 0;
  }
  for (const Command& command : kCommands) {
    if (name == command.name) return command.run({arguments.begin() + 1, arguments.end()});
  }
  refuse_unknown(name);
}

int run(const Arguments& arguments) {
  restore_ignored_signals();
  const std::string who =
      arguments.empty() || arguments[0].starts_with("-") ? "paceline" : "paceline " + arguments[0];
  return guarded(who, [&] { return dispatch(arguments); });
}

}  // namespace

}  // namespace paceline::apps

int main(int argc, char** argv) {
  paceline::hold_standard_streams();
  return paceline::apps::run({argv + 1, argv + argc});
}
