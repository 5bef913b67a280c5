#pragma once

// What every measurement of `paceline bench` prints and writes.

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "apps/bench/command/bench_options.h"
#include "apps/bench/report.h"
#include "apps/cli/commands.h"

namespace paceline::apps {

// Before minutes are spent on measuring. Throws UsageError.
void require_writable(const std::string& flag, const std::string& path);

// From here on the first SIGINT or SIGTERM ends the measurement, the second one this process.
void end_bench_at_signals();
bool bench_was_interrupted();

// Prints who takes part, measures, prints the notes and writes the files. Whatever ends `measure`,
// the files have what was measured until then. The exit code.
int measure_and_write(const bench::ReportHead& report, const std::function<void()>& measure,
                      const std::function<void()>& write);

// The modes of `paceline bench` that deal with the planner: what it goes by, what it chooses, what
// it predicts.
//
// Under a launcher (paceline run, mpirun, srun, ...) every process of the command is one rank of
// the group; otherwise the group is made of `--nproc-per-node` processes of this host.

// Every mode but kMeasure. The exit code.
int plan_with_bench(const BenchOptions& options);

// Call once where a file is kStandardOutput: all else that is printed goes to standard error.
void leave_output_to_files();
// Nothing for an empty path. Error(kSystem).
void write_bench_file(const std::string& path, const std::string& text);

// `paceline bench rpc`: calls between two workers, beside other libraries.

// `arguments` begin with "rpc". The exit code.
int bench_calls_command(const Arguments& arguments);

}  // namespace paceline::apps
