#pragma once

// Facts about the machine that `paceline gpu-check` collects, and the checks that need no ranks.
//
// Thread safety: none.

#include <cstdint>
#include <string>
#include <vector>

#include "apps/doctor/gpu_findings.h"
#include "apps/gpu_check/check_report.h"

namespace paceline::gpu_check {

struct DeviceFacts {
  std::string bus_id;
  std::uint64_t free_bytes = 0, total_bytes = 0;
};

// The answer of the ranks' program about itself and the GPUs (rank/probe.cpp).
struct ProgramFacts {
  std::string error;     // why the program did not answer; empty: the other fields are valid
  std::string libtorch;  // "2.11.0"
  bool knows_cuda = false;
  std::string
      cuda_error;  // why LibTorch's CUDA cannot be used; empty if it can, or if knows_cuda is false
  bool has_c10d_nccl = false;
  std::vector<DeviceFacts> devices;
};

// Starts the program with --probe. If a driver hangs, `error` reports it after a minute.
ProgramFacts ask_program(const std::string& program);

// Runs a command and returns the end of its output, for the report; empty if the command printed
// nothing. The command is killed after `seconds`.
std::string output_of(const std::string& command, int seconds);

// Everything that a reader of the report needs to know about the machine, as a JSON object.
std::string facts_text(const apps::GpuMachine& machine, const ProgramFacts& program,
                       const std::string& program_path);

// The findings of `paceline doctor` about GPUs, as outcomes.
std::vector<CheckOutcome> outcomes_of(const std::vector<apps::Finding>& findings);

// Runs all_reduce_perf of nccl-tests, if it is installed, and reports its bandwidth.
CheckOutcome run_nccl_tests(int num_gpus);

// Asks `program` for the free memory of the GPUs and compares it with `before`, the answer before
// all checks. Repeats this for some seconds, because drivers release memory late.
CheckOutcome check_memory_returned(const std::string& program, const ProgramFacts& before);

}  // namespace paceline::gpu_check
