#include "apps/variables_check.h"

#include <algorithm>
#include <array>
#include <string_view>

#include <fmt/format.h>

#include "paceline/launch/line_formatter.h"
#include "paceline/launch/worker_environment.h"

#include "apps/suggestion.h"

namespace paceline::apps {
namespace {

// torchrun's, of any version, that nothing here heeds.
constexpr std::array<std::string_view, 9> kTorchruns = {"PET_MODULE",
                                                        "PET_RUN_PATH",
                                                        "PET_LOCAL_ADDR",
                                                        "PET_LOGS_SPECS",
                                                        "PET_EVENT_LOG_HANDLER",
                                                        "PET_SIGNALS_TO_HANDLE",
                                                        "PET_VIRTUAL_LOCAL_RANK",
                                                        "PET_DUPLICATE_STDOUT_FILTERS",
                                                        "PET_DUPLICATE_STDERR_FILTERS"};

// torchrun's that make no difference here, and those of paceline submit.
const std::vector<std::string>& known_elsewhere() {
  static const std::vector<std::string> kNames = {
      "PET_START_METHOD", "PET_JOB_NAME", "PET_MEM",       "PET_TIME",
      "PET_PARTITION",    "PET_ACCOUNT",  "PET_QOS",       "PET_CONSTRAINT",
      "PET_RESERVATION",  "PET_ARRAY",    "PET_OUTPUT",    "PET_SIGNAL_BEFORE",
      "PET_NO_REQUEUE",   "PET_IMAGE",    "PET_NAMESPACE", "PET_SHARED_MEMORY",
      "PET_RUN_AS_USER"};
  return kNames;
}

}  // namespace

std::vector<std::string> variables_without_effect(const CLI::App& app) {
  std::vector<std::string> known = known_elsewhere();
  for (const CLI::Option* option : app.get_options()) {
    if (!option->get_envname().empty()) known.push_back(option->get_envname());
  }
  std::vector<std::string> sentences;
  for (const auto& [name, value] : launch::inherited_environment()) {
    if (!name.starts_with("PET_") || value.empty()) continue;
    if (std::find(known.begin(), known.end(), name) != known.end()) continue;
    if (std::find(kTorchruns.begin(), kTorchruns.end(), name) != kTorchruns.end()) {
      sentences.push_back(
          fmt::format("the variable {} is torchrun's and has no effect here", name));
      continue;
    }
    const std::string meant = nearest(name, known);
    sentences.push_back(fmt::format("the variable {} is no option of paceline or torchrun{}",
                                    launch::neutralise(name),
                                    meant.empty() ? "" : fmt::format("; did you mean {}?", meant)));
  }
  return sentences;
}

}  // namespace paceline::apps
