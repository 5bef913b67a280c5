// paceline timeline DIR: the timelines that ranks left in a directory, as one trace.

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "paceline/telemetry/timeline_file.h"
#include "paceline/timeline/timeline_trace.h"

#include "apps/command_line.h"
#include "apps/commands.h"
#include "apps/message.h"
#include "apps/usage_error.h"

namespace paceline::apps {

int timeline_command(const Arguments& arguments) {
  CLI::App app(
      "Puts the timelines that ranks recorded in a directory on one clock, as a file that "
      "https://ui.perfetto.dev opens: paceline timeline [options] DIR. `paceline run --timeline "
      "FILE` does it by itself.",
      "paceline timeline");
  std::string output = "timeline.json";
  app.add_option("-o,--output", output, "The trace to write")
      ->type_name("FILE")
      ->default_str(output);
  app.footer(
      "\nFiles of several machines can be copied into one directory.\n\nExamples:\n"
      "  mpirun -x PACELINE_TIMELINE_DIR=/shared/spans ./train; paceline timeline /shared/spans");
  const CommandLine line = split_command_line(app, arguments);
  if (!take_options(app, line)) {
    fmt::print("{}", app.help());
    return 0;
  }
  if (line.program.size() != 1) {
    throw UsageError(line.program.empty() ? "which directory? see paceline timeline --help"
                                          : fmt::format("'{}' was not expected", line.program[1]));
  }
  const auto paths = timelines_in(line.program.front());
  const launch::TraceSummary summary = launch::write_trace(paths, output);
  for (const std::string& problem : summary.problems)
    say("paceline timeline: left out: " + problem);
  fmt::print("{}: {}\n", output, launch::describe(summary));
  return 0;
}

}  // namespace paceline::apps
