#include "paceline/launcher/job/output_warnings.h"

#include <string>

#include <fmt/format.h>

namespace paceline::launcher {

OutputWarnings::OutputWarnings(Consoles& consoles, const LogDirectory& logs)
    : consoles_(consoles), logs_(logs) {}

void OutputWarnings::tend(const Generation* running) {
  if (!warned_about_logs_ && running != nullptr) warn_about_logs(*running);
  if (!warned_about_terminals_ && running != nullptr) warn_about_terminals(*running);
  if (!warned_about_console_) warn_about_console();
}

void OutputWarnings::warn_about_logs(const Generation& running) {
  const std::string problem = logs_.problem().empty() ? running.log_problem() : logs_.problem();
  if (problem.empty()) return;
  warned_about_logs_ = true;
  consoles_.say(fmt::format("paceline: warning: {}; the job goes on\n", problem));
}

void OutputWarnings::warn_about_terminals(const Generation& running) {
  if (running.no_terminal_because().empty()) return;
  warned_about_terminals_ = true;
  consoles_.say(fmt::format(
      "paceline: warning: no pseudo-terminal for the ranks' stdout ({}), which is a pipe "
      "now: programs other than Python print late, unless they flush\n",
      running.no_terminal_because()));
}

void OutputWarnings::warn_about_console() {
  const std::string lost = consoles_.lost();
  if (lost.empty()) return;
  warned_about_console_ = true;
  const std::string logs = logs_.usable_path();
  consoles_.say(fmt::format("paceline: warning: output of the ranks could not be written to {}{}\n",
                            lost, logs.empty() ? "" : fmt::format("; it is complete in {}", logs)));
}

}  // namespace paceline::launcher
