#include "apps/gpu_check/check_report.h"

#include <algorithm>
#include <fstream>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "paceline/engine/core/check.h"
#include "paceline/engine/core/error_text.h"
#include "paceline/engine/core/json_text.h"

namespace paceline::gpu_check {

const char* name_of(Verdict verdict) {
  switch (verdict) {
    case Verdict::kPass:
      return "pass";
    case Verdict::kFail:
      return "fail";
    case Verdict::kNotHere:
      return "skipped";
  }
  return "fail";
}

Verdict verdict_of(const std::string& name) {
  for (const Verdict verdict : {Verdict::kPass, Verdict::kFail, Verdict::kNotHere}) {
    if (name == name_of(verdict)) return verdict;
  }
  fail(ErrorCode::kCorrupt, "a rank wrote the verdict '{}'", name);
}

std::string text_of(const CheckOutcome& outcome) {
  const std::string text = outcome.text.empty() ? outcome.what : outcome.text;
  std::string lines =
      fmt::format("{:<8}  {:<20}  {}", name_of(outcome.verdict), outcome.name, text);
  if (outcome.seconds >= 0.05) lines += fmt::format(" ({:.1f} s)", outcome.seconds);
  if (!outcome.advice.empty()) lines += fmt::format("\n{:32}-> {}", "", outcome.advice);
  return lines;
}

std::string summary_of(const std::vector<CheckOutcome>& outcomes) {
  std::vector<std::string> failed;
  long passed = 0;
  for (const CheckOutcome& outcome : outcomes) {
    if (outcome.verdict == Verdict::kFail) failed.push_back(outcome.name);
    passed += outcome.verdict == Verdict::kPass;
  }
  const auto not_here =
      static_cast<long>(outcomes.size()) - passed - static_cast<long>(failed.size());
  return fmt::format("{} passed, {} failed{}, {} skipped", passed, failed.size(),
                     failed.empty() ? "" : fmt::format(" ({})", fmt::join(failed, ", ")), not_here);
}

bool any_failed(const std::vector<CheckOutcome>& outcomes) {
  return std::any_of(outcomes.begin(), outcomes.end(),
                     [](const CheckOutcome& outcome) { return outcome.verdict == Verdict::kFail; });
}

std::string report_text(const std::string& facts, const std::vector<CheckOutcome>& outcomes,
                        double seconds) {
  nlohmann::ordered_json checks = nlohmann::ordered_json::array();
  for (const CheckOutcome& outcome : outcomes) {
    nlohmann::ordered_json check = {
        {"name", outcome.name}, {"what", outcome.what},     {"verdict", name_of(outcome.verdict)},
        {"text", outcome.text}, {"advice", outcome.advice}, {"seconds", outcome.seconds}};
    if (!outcome.figures.empty()) {
      check["figures"] = nlohmann::ordered_json::parse(outcome.figures);
    }
    if (!outcome.output.empty()) check["output"] = outcome.output;
    checks.push_back(std::move(check));
  }
  const nlohmann::ordered_json report = {{"report", "paceline gpu-check"},
                                         {"format", 1},
                                         {"summary", summary_of(outcomes)},
                                         {"ok", !any_failed(outcomes)},
                                         {"seconds", seconds},
                                         {"machine", nlohmann::ordered_json::parse(facts)},
                                         {"checks", std::move(checks)}};
  return json_text(report, 2) + "\n";
}

void write_report(const std::string& path, const std::string& text) {
  std::ofstream file(path);
  file << text << std::flush;
  if (!file) throw system_error("writing the report " + path);
}

}  // namespace paceline::gpu_check
