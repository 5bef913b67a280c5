#include "apps/cli/suggestion.h"

#include <algorithm>
#include <cstddef>
#include <tuple>

namespace paceline::apps {

int edit_distance(const std::string& a, const std::string& b) {
  // Rows of the usual table: two back, one back, current.
  std::vector<int> before, previous(b.size() + 1), current(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) previous[j] = static_cast<int>(j);
  for (std::size_t i = 1; i <= a.size(); ++i) {
    current[0] = static_cast<int>(i);
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const int replace = previous[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      current[j] = std::min({replace, previous[j] + 1, current[j - 1] + 1});
      const bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (swapped) current[j] = std::min(current[j], before[j - 2] + 1);
    }
    before = previous;
    previous = current;
  }
  return previous[b.size()];
}

namespace {

// Compares as the distance of `word` from what was typed. Between two words with equal edit
// distances the user means the one with which `typed` begins, as "topp" begins with "top", or else
// the one with the longer common beginning.
std::tuple<int, bool, std::ptrdiff_t> remoteness(const std::string& typed,
                                                 const std::string& word) {
  const bool beginning = typed.size() >= 3 && word.starts_with(typed);
  const auto common = std::mismatch(typed.begin(), typed.end(), word.begin(), word.end()).first;
  return {beginning ? 1 : edit_distance(typed, word), !typed.starts_with(word),
          typed.begin() - common};
}

}  // namespace

std::string nearest(const std::string& typed, const std::vector<std::string>& known) {
  std::string best;
  const auto length = static_cast<int>(typed.size());
  std::tuple<int, bool, std::ptrdiff_t> smallest{std::min(length / 3 + 1, length / 2) + 1, false,
                                                 -length};
  for (const std::string& word : known) {
    const auto here = remoteness(typed, word);
    if (here < smallest) {
      smallest = here;
      best = word;
    }
  }
  return best;
}

std::string did_you_mean(const std::string& typed, const std::vector<std::string>& known) {
  const std::string meant = nearest(typed, known);
  return meant.empty() ? "" : "; did you mean " + meant + "?";
}

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
