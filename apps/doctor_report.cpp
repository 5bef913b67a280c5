#include "apps/doctor_report.h"

#include <algorithm>

#include <fmt/format.h>

#include "paceline/engine/core/json_text.h"

namespace paceline::apps {
namespace {

const char* name_of(Verdict verdict) {
  switch (verdict) {
    case Verdict::kOk:
      return "OK";
    case Verdict::kInfo:
      return "INFO";
    case Verdict::kWarn:
      return "WARN";
    case Verdict::kFail:
      return "FAIL";
  }
  return "FAIL";
}

}  // namespace

std::string doctor_text(const std::vector<Finding>& findings) {
  std::string text;
  for (const Finding& finding : findings) {
    text +=
        fmt::format("{:<4}  {:<16}  {}\n", name_of(finding.verdict), finding.name, finding.text);
    if (!finding.advice.empty()) text += fmt::format("{:24}-> {}\n", "", finding.advice);
  }
  return text;
}

std::string doctor_json(const std::vector<Finding>& findings) {
  nlohmann::ordered_json checks = nlohmann::ordered_json::array();
  for (const Finding& finding : findings) {
    checks.push_back({{"name", finding.name},
                      {"verdict", name_of(finding.verdict)},
                      {"text", finding.text},
                      {"advice", finding.advice}});
  }
  const nlohmann::ordered_json report = {{"ok", !any_failed(findings)}, {"checks", checks}};
  // A path or variable may hold bytes that are not UTF-8.
  return json_text(report, 2) + "\n";
}

bool any_failed(const std::vector<Finding>& findings) {
  return std::any_of(findings.begin(), findings.end(),
                     [](const Finding& finding) { return finding.verdict == Verdict::kFail; });
}

}  // namespace paceline::apps
