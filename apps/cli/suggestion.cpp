#include "apps/cli/suggestion.h"

#include <algorithm>
#include <map>
#include <sstream>

namespace paceline::apps {

namespace {

// The words that other launchers, schedulers and tools use for one of paceline's commands.
struct PeerWords {
  const char* command;
  const char* words;
};

constexpr PeerWords kPeerWords[] = {
    {"run", "launch start exec execute mpirun mpiexec torchrun srun train spawn"},
    {"submit", "sbatch batch qsub salloc apply"},
    {"advise", "tune autotune recommend advice plan suggest"},
    {"topo", "topology lstopo bind bindings map numa"},
    {"bench", "benchmark measure perf"},
    {"doctor", "test check info diagnose env collect_env"},
    {"gpu-check", "gpu gpus cuda nccl gpucheck gpu_check selftest"},
    {"checkpoint", "verify ckpt convert export restore prune"},
    {"completion", "completions complete"},
    {"explain", "why analyze analyse postmortem flight flights report"},
    {"timeline", "trace traces profile record"},
    {"ps", "list ls jobs job status queue squeue qstat show get"},
    {"top", "monitor watch htop stats usage dashboard"},
    {"logs", "log tail output attach cat"},
    {"stop", "kill cancel scancel qdel end terminate abort delete rm down"},
    {"stacks", "stack backtrace bt pstack gstack dump gdb"},
    {"--version", "version"},
};

}  // namespace

std::string did_you_mean(const std::string& typed, const std::vector<std::string>& known) {
  const std::string meant = nearest(typed, known);
  return meant.empty() ? "" : "; did you mean " + meant + "?";
}

std::string command_meant_by(const std::string& typed, const std::vector<std::string>& commands) {
  std::vector<std::string> known = commands;
  std::map<std::string, std::string> command_of;
  for (const auto& [command, words] : kPeerWords) {
    std::istringstream list(words);
    for (std::string word; list >> word; known.push_back(word)) command_of.emplace(word, command);
  }
  const std::string word = nearest(typed, known);
  const bool is_command = std::find(commands.begin(), commands.end(), word) != commands.end();
  return is_command || word.empty() ? word : command_of.at(word);
}

}  // namespace paceline::apps
