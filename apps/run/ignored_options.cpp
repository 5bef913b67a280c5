#include "apps/run/ignored_options.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <string_view>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "paceline/engine/core/error.h"
#include "paceline/launcher/output/line_formatter.h"
#include "paceline/launcher/process/process.h"

#include "apps/cli/suggestion.h"

namespace paceline::apps {

namespace {

constexpr std::array kOfRanks = {"--nproc-per-node", "--nnodes", "--hosts", "--hostfile"};
constexpr int kCouldNotStart = 126;  // from this exit code on: not started, or ended by a signal

bool is_of_ranks(const std::string& word) {
  return std::find(kOfRanks.begin(), kOfRanks.end(), option_name(word)) != kOfRanks.end();
}

std::string note(const std::vector<std::string>& words, const CommandLine& line,
                 const std::string& consequence) {
  const std::string program = launcher::neutralise_in_line(line.program.front());
  return fmt::format(
      "paceline: note: {} come{} after the program, so {} gets {}{}; options of paceline run come "
      "first: paceline run {} ... {}",
      fmt::join(words, ", "), words.size() == 1 ? "s" : "", program,
      words.size() == 1 ? "it" : "them", consequence, words.front(), program);
}

}  // namespace

std::vector<std::string> options_behind(const CLI::App& app, const CommandLine& line) {
  std::vector<std::string> words;
  for (std::size_t i = 1; i < line.program.size() && line.program[i] != "--"; ++i) {
    const std::string& word = line.program[i];
    if (!word.starts_with("--")) continue;
    const CLI::Option* const option = app.get_option_no_throw(option_name(word));
    if (option == nullptr || option->get_group().empty() || option == app.get_help_ptr()) continue;
    if (origin_of(*option, line) == "default") words.push_back(word.substr(0, word.find('=')));
  }
  return words;
}

std::string note_on_ranks(const std::vector<std::string>& behind, const CommandLine& line) {
  std::vector<std::string> words;
  std::copy_if(behind.begin(), behind.end(), std::back_inserter(words), is_of_ranks);
  return words.empty() ? "" : note(words, line, ", and one rank is started");
}

std::string note_on_failure(const std::vector<std::string>& behind, const CommandLine& line,
                            int exit_code) {
  const bool failed = exit_code != 0 && exit_code != kStoppedAsAgreed && exit_code < kCouldNotStart;
  return !failed || behind.empty() ? "" : note(behind, line, "");
}

namespace {

constexpr const char* kPrefix = "PET_";
constexpr const char* kOwnPrefix = "PACELINE_";

// Variables of any version of torchrun that have no effect here.
constexpr std::array<std::string_view, 9> kTorchruns = {"PET_MODULE",
                                                        "PET_RUN_PATH",
                                                        "PET_LOCAL_ADDR",
                                                        "PET_LOGS_SPECS",
                                                        "PET_EVENT_LOG_HANDLER",
                                                        "PET_SIGNALS_TO_HANDLE",
                                                        "PET_VIRTUAL_LOCAL_RANK",
                                                        "PET_DUPLICATE_STDOUT_FILTERS",
                                                        "PET_DUPLICATE_STDERR_FILTERS"};

// Variables that the Python package reads (python/paceline/torch).
constexpr std::array<std::string_view, 2> kPythonPackages = {"PACELINE_BIND",
                                                             "PACELINE_TORCH_DEFAULT"};

// Variables that need no warning: some of torchrun's, whose effect is not needed here, and those of
// paceline submit.
const std::vector<std::string>& known_elsewhere() {
  static const std::vector<std::string> kNames = {
      "PET_START_METHOD", "PET_JOB_NAME", "PET_MEM",       "PET_TIME",
      "PET_PARTITION",    "PET_ACCOUNT",  "PET_QOS",       "PET_CONSTRAINT",
      "PET_RESERVATION",  "PET_ARRAY",    "PET_OUTPUT",    "PET_SIGNAL_BEFORE",
      "PET_NO_REQUEUE",   "PET_IMAGE",    "PET_NAMESPACE", "PET_SHARED_MEMORY",
      "PET_RUN_AS_USER"};
  return kNames;
}

// "; did you mean PET_TEE?", or "" if none of `known` is similar. Names are compared without their
// common `prefix`.
std::string suggestion(const std::string& name, const std::string& prefix,
                       const std::vector<std::string>& known) {
  std::vector<std::string> rests;
  for (const std::string& one : known) rests.push_back(one.substr(prefix.size()));
  const std::string meant = nearest(name.substr(prefix.size()), rests);
  return meant.empty() ? "" : fmt::format("; did you mean {}{}?", prefix, meant);
}

}  // namespace

const std::vector<std::string>& own_variables() {
  static const std::vector<std::string> kNames = {
      "PACELINE_BACKEND",        "PACELINE_BENCH_SPIN_US",     "PACELINE_CALIBRATION",
      "PACELINE_PYTHON",         "PACELINE_CRASH_REPORT",      "PACELINE_ENCRYPT",
      "PACELINE_FLIGHT_DIR",     "PACELINE_FLIGHT_KEEP",       "PACELINE_FORK_SERVER",
      "PACELINE_JOB_SOCKET",     "PACELINE_LIBCUDART",         "PACELINE_LIBNCCL",
      "PACELINE_LOGICAL_SHARDS", "PACELINE_LOG_LEVEL",         "PACELINE_SECRET_FD",
      "PACELINE_SECRET_FILE",    "PACELINE_MEMORY_CHECKPOINT", "PACELINE_PROFILE",
      "PACELINE_STEP_LOG",       "PACELINE_SOCKET_IFNAME",     "PACELINE_STORE",
      "PACELINE_STORE_PORT",     "PACELINE_TCP_STREAMS",       "PACELINE_TERMINAL",
      "PACELINE_THREAD_SHARE",   "PACELINE_TIMELINE_DIR",      "PACELINE_TIMEOUT",
      "PACELINE_TRANSPORT"};
  return kNames;
}

std::vector<std::string> unknown_own_variables() {
  std::vector<std::string> known = own_variables();
  known.insert(known.end(), kPythonPackages.begin(), kPythonPackages.end());
  std::vector<std::string> sentences;
  for (const auto& [name, value] : launcher::inherited_environment()) {
    if (!name.starts_with(kOwnPrefix)) continue;
    if (std::find(known.begin(), known.end(), name) != known.end()) continue;
    sentences.push_back(fmt::format("unknown variable {}{}", launcher::neutralise(name),
                                    suggestion(name, kOwnPrefix, known)));
  }
  return sentences;
}

std::vector<std::string> variables_without_effect(const CLI::App& app) {
  std::vector<std::string> known = known_elsewhere();
  for (const CLI::Option* option : app.get_options()) {
    if (!option->get_envname().empty()) known.push_back(option->get_envname());
  }
  std::vector<std::string> sentences;
  for (const auto& [name, value] : launcher::inherited_environment()) {
    if (!name.starts_with(kPrefix) || value.empty()) continue;
    if (std::find(known.begin(), known.end(), name) != known.end()) continue;
    if (std::find(kTorchruns.begin(), kTorchruns.end(), name) != kTorchruns.end()) {
      sentences.push_back(
          fmt::format("the variable {} is torchrun's and has no effect here", name));
      continue;
    }
    sentences.push_back(fmt::format("the variable {} is not an option of paceline or torchrun{}",
                                    launcher::neutralise(name), suggestion(name, kPrefix, known)));
  }
  return sentences;
}

}  // namespace paceline::apps
