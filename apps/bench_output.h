#pragma once

// What every measurement of `paceline bench` prints and writes.

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "apps/bench/report.h"

namespace paceline::apps {

// Before minutes are spent on measuring. Throws UsageError.
void require_writable(const std::string& flag, const std::string& path);

// As it was typed.
std::string bench_command_text(const std::vector<std::string>& arguments);

// From here on the first SIGINT or SIGTERM ends the measurement, the second one this process.
void end_bench_at_signals();
bool bench_was_interrupted();

// Prints who takes part, measures, prints the notes and writes the files. Whatever ends `measure`,
// the files have what was measured until then. The exit code.
int measure_and_write(const bench::ReportHead& report, const std::function<void()>& measure,
                      const std::function<void()>& write);

}  // namespace paceline::apps
