// `paceline doctor`: runs the checks and prints their findings.

#include <algorithm>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "paceline/engine/core/error.h"
#include "paceline/engine/core/error_text.h"
#include "paceline/engine/core/json_text.h"

#include "apps/cli/commands.h"
#include "apps/cli/option_table.h"
#include "apps/doctor/doctor_report.h"
#include "apps/doctor/gpu_findings.h"

namespace paceline::apps {

namespace {

const char* name_of(CheckResult result) {
  switch (result) {
    case CheckResult::kOk:
      return "OK";
    case CheckResult::kInfo:
      return "INFO";
    case CheckResult::kWarn:
      return "WARN";
    case CheckResult::kFail:
      return "FAIL";
  }
  return "FAIL";
}

}  // namespace

std::string doctor_text(const std::vector<Finding>& findings) {
  std::string text;
  for (const Finding& finding : findings) {
    text += fmt::format("{:<4}  {:<16}  {}\n", name_of(finding.result), finding.name, finding.text);
    if (!finding.advice.empty()) text += fmt::format("{:24}-> {}\n", "", finding.advice);
  }
  return text;
}

std::string doctor_json(const std::vector<Finding>& findings) {
  nlohmann::ordered_json checks = nlohmann::ordered_json::array();
  for (const Finding& finding : findings) {
    checks.push_back({{"name", finding.name},
                      {"verdict", name_of(finding.result)},
                      {"text", finding.text},
                      {"advice", finding.advice}});
  }
  const nlohmann::ordered_json report = {{"ok", !any_failed(findings)}, {"checks", checks}};
  // A path or a variable may contain bytes that are not UTF-8; json_text() replaces them.
  return json_text(report, 2) + "\n";
}

bool any_failed(const std::vector<Finding>& findings) {
  return std::any_of(findings.begin(), findings.end(),
                     [](const Finding& finding) { return finding.result == CheckResult::kFail; });
}

int doctor_command(const Arguments& arguments) {
  CLI::App app("Reports what this machine and this build can do, and how to get what is missing.",
               "paceline doctor");
  bool json = false;
  OptionTable table(app, /*has_variables=*/false);
  table.flag("--json", "One JSON object instead of lines", bool_target(json));
  app.footer(
      "\nVerdicts: OK, INFO (an optional part is not available), WARN (works, with a drawback),\n"
      "FAIL (must be repaired). The exit code is 3 if any verdict is FAIL.\n\n"
      "Examples:\n  paceline doctor\n  paceline doctor --json");
  if (!table.read_line(arguments, 0)) return 0;
  std::vector<Finding> findings = check_build();
  for (const auto& more : {check_engine(), check_machine(), gpu_findings(gpu_machine_here())})
    findings.insert(findings.end(), more.begin(), more.end());
  fmt::print("{}", json ? doctor_json(findings) : doctor_text(findings));
  return any_failed(findings) ? kExitEnvironment : 0;
}

}  // namespace paceline::apps
