#pragma once

// The modes of `paceline bench` that deal with the planner: what it goes by, what it chooses, what
// it predicts.
//
// Under a launcher (paceline run, mpirun, srun, ...) every process of the command is one rank of
// the group; otherwise the group is made of `--nproc-per-node` processes of this host.

#include "apps/bench_options.h"

namespace paceline::apps {

// Every mode but kMeasure. The exit code.
int plan_with_bench(const BenchOptions& options);

// Call once where a file is kStandardOutput: all else that is printed goes to standard error.
void leave_output_to_files();
// Nothing for an empty path. Error(kSystem).
void write_bench_file(const std::string& path, const std::string& text);

}  // namespace paceline::apps
