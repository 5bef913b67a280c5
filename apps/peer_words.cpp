#include "apps/peer_words.h"

#include <algorithm>

#include "apps/suggestion.h"

namespace paceline::apps {
namespace {

struct PeerWord {
  const char* word;
  const char* command;
};

constexpr PeerWord kPeerWords[] = {
    {"launch", "run"},
    {"start", "run"},
    {"exec", "run"},
    {"execute", "run"},
    {"mpirun", "run"},
    {"mpiexec", "run"},
    {"torchrun", "run"},
    {"srun", "run"},
    {"train", "run"},
    {"spawn", "run"},
    {"sbatch", "submit"},
    {"batch", "submit"},
    {"qsub", "submit"},
    {"salloc", "submit"},
    {"apply", "submit"},
    {"tune", "advise"},
    {"autotune", "advise"},
    {"recommend", "advise"},
    {"advice", "advise"},
    {"plan", "advise"},
    {"suggest", "advise"},
    {"topology", "topo"},
    {"lstopo", "topo"},
    {"bind", "topo"},
    {"bindings", "topo"},
    {"map", "topo"},
    {"numa", "topo"},
    {"benchmark", "bench"},
    {"measure", "bench"},
    {"perf", "bench"},
    {"test", "doctor"},
    {"check", "doctor"},
    {"info", "doctor"},
    {"diagnose", "doctor"},
    {"env", "doctor"},
    {"collect_env", "doctor"},
    {"verify", "checkpoint"},
    {"ckpt", "checkpoint"},
    {"convert", "checkpoint"},
    {"export", "checkpoint"},
    {"restore", "checkpoint"},
    {"prune", "checkpoint"},
    {"completions", "completion"},
    {"complete", "completion"},
    {"why", "explain"},
    {"analyze", "explain"},
    {"analyse", "explain"},
    {"postmortem", "explain"},
    {"flight", "explain"},
    {"flights", "explain"},
    {"report", "explain"},
    {"trace", "timeline"},
    {"traces", "timeline"},
    {"profile", "timeline"},
    {"record", "timeline"},
    {"list", "ps"},
    {"ls", "ps"},
    {"jobs", "ps"},
    {"job", "ps"},
    {"status", "ps"},
    {"queue", "ps"},
    {"squeue", "ps"},
    {"qstat", "ps"},
    {"show", "ps"},
    {"get", "ps"},
    {"monitor", "top"},
    {"watch", "top"},
    {"htop", "top"},
    {"stats", "top"},
    {"usage", "top"},
    {"dashboard", "top"},
    {"log", "logs"},
    {"tail", "logs"},
    {"output", "logs"},
    {"attach", "logs"},
    {"cat", "logs"},
    {"kill", "stop"},
    {"cancel", "stop"},
    {"scancel", "stop"},
    {"qdel", "stop"},
    {"end", "stop"},
    {"terminate", "stop"},
    {"abort", "stop"},
    {"delete", "stop"},
    {"rm", "stop"},
    {"down", "stop"},
    {"stack", "stacks"},
    {"backtrace", "stacks"},
    {"bt", "stacks"},
    {"pstack", "stacks"},
    {"gstack", "stacks"},
    {"dump", "stacks"},
    {"gdb", "stacks"},
    {"version", "--version"},
};

const char* command_for(const std::string& word) {
  const auto* const known = std::find_if(std::begin(kPeerWords), std::end(kPeerWords),
                                         [&](const PeerWord& peer) { return word == peer.word; });
  return known == std::end(kPeerWords) ? nullptr : known->command;
}

}  // namespace

std::string command_meant_by(const std::string& typed, const std::vector<std::string>& commands) {
  std::vector<std::string> known = commands;
  for (const PeerWord& peer : kPeerWords) known.emplace_back(peer.word);
  const std::string word = nearest(typed, known);
  const bool is_command = std::find(commands.begin(), commands.end(), word) != commands.end();
  const char* const command = is_command ? nullptr : command_for(word);
  return command != nullptr ? command : word;
}

}  // namespace paceline::apps
