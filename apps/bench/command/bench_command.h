#pragma once

// The parts of `paceline bench`: printing and writing measurements, the modes that use the planner,
// and `paceline bench rpc`.

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "apps/bench/command/bench_options.h"
#include "apps/bench/report.h"
#include "apps/cli/commands.h"

namespace paceline::apps {

// Checks that an output file can be written, before minutes are spent on measuring. Throws
// UsageError.
void require_writable(const std::string& flag, const std::string& path);

// From now on the first SIGINT or SIGTERM ends the measurement. A second signal of the same kind
// ends this process.
void end_bench_at_signals();
bool bench_was_interrupted();

// Prints the participants, calls `measure`, prints the notes, and calls `write` for the files.
// After an Error of `measure`, prints and writes, then rethrows. After a signal, ends by that
// signal.
int measure_and_write(const bench::ReportHead& report, const std::function<void()>& measure,
                      const std::function<void()>& write);

// Runs any mode except kMeasure: shows or measures the planner's costs, its choices and its
// predictions. Returns the exit code. Under a launcher (paceline run, mpirun, srun, ...) every
// process of the command is one rank of the group; otherwise the group consists of
// `--nproc-per-node` processes on this host.
int plan_with_bench(const BenchOptions& options);

// Call this once if a file is kStandardOutput. From then on all other output is written to standard
// error.
void leave_output_to_files();
// Writes a file of results. Does nothing if `path` is empty. Error(kSystem).
void write_bench_file(const std::string& path, const std::string& text);

// `paceline bench rpc`: measures calls between two workers, in comparison with other libraries.
// `arguments` begin with "rpc". Returns the exit code.
int bench_calls_command(const Arguments& arguments);

}  // namespace paceline::apps
