#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "paceline/engine/core/exit_code.h"

#include "apps/commands.h"
#include "apps/doctor_checks.h"
#include "apps/option_table.h"

namespace paceline::apps {

int doctor_command(const Arguments& arguments) {
  CLI::App app("Reports what this machine and this build can do, and how to get what is missing.",
               "paceline doctor");
  bool json = false;
  OptionTable table(app, /*has_variables=*/false);
  table.flag("--json", "One JSON object instead of lines", bool_target(json));
  app.footer(
      "\nOK, INFO (an optional part that is not available), WARN (works, with a drawback), FAIL.\n"
      "Exit code 3 when something must be repaired (FAIL).\n\n"
      "Examples:\n  paceline doctor\n  paceline doctor --json");
  if (!table.read_line(arguments, 0)) return 0;
  std::vector<Finding> findings = check_build();
  for (const auto& more : {check_engine(), check_machine()})
    findings.insert(findings.end(), more.begin(), more.end());
  fmt::print("{}", json ? doctor_json(findings) : doctor_text(findings));
  return any_failed(findings) ? kExitEnvironment : 0;
}

}  // namespace paceline::apps
