// `paceline timeline DIR`: joins the timelines that ranks left in a directory into one trace.

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "paceline/engine/telemetry/timeline_file.h"
#include "paceline/launcher/job_timeline/timeline_trace.h"

#include "apps/cli/commands.h"
#include "apps/cli/option_table.h"
#include "apps/cli/option_value.h"

namespace paceline::apps {

int timeline_command(const Arguments& arguments) {
  CLI::App app(
      "Joins the timelines that ranks recorded in a directory into one trace, on one clock, for "
      "https://ui.perfetto.dev: paceline timeline [options] DIR. `paceline run --timeline FILE` "
      "does so automatically.",
      "paceline timeline");
  std::string output = "timeline.json";
  OptionTable table(app, /*has_variables=*/false);
  table.word("DIR", "The directory with the timelines");
  table.value("-o,--output", "FILE", "The trace to write", text_target(output));
  app.footer(
      "\nFiles of several machines can be copied into one directory.\n\nExamples:\n"
      "  mpirun -x PACELINE_TIMELINE_DIR=/shared/spans ./train; paceline timeline /shared/spans");
  const auto words = table.read_line(arguments, 1);
  if (!words) return 0;
  if (words->empty()) throw UsageError("no directory given; see paceline timeline --help");
  const auto paths = timelines_in(words->front());
  if (paths.empty()) {
    throw UsageError(words->front() + ": contains no timeline of a rank (PACELINE_TIMELINE_DIR)");
  }
  const launcher::TraceSummary summary = launcher::write_trace(paths, output);
  for (const std::string& problem : summary.problems)
    say("paceline timeline: left out: " + problem);
  fmt::print("{}: {}\n", output, launcher::describe(summary));
  return 0;
}

}  // namespace paceline::apps
