#pragma once

// Facts about the machine that `paceline gpu-check` finds out before and beside its ranks' checks.
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

// The ranks' program's answer about itself and the GPUs (rank/probe.cpp).
struct ProgramFacts {
  std::string error;     // why it could not be asked; empty: the rest is valid
  std::string libtorch;  // "2.11.0"
  bool knows_cuda = false;
  std::string
      cuda_error;  // why LibTorch's CUDA cannot be used; empty: it can, or knows_cuda is false
  bool has_c10d_nccl = false;
  std::vector<DeviceFacts> devices;
};

// Starts the program to ask it. A driver that hangs is an `error` after a minute.
ProgramFacts ask_program(const std::string& program);

// The end of what a command prints, for the report; empty if it is not installed. It is ended
// after `seconds`.
std::string output_of(const std::string& command, int seconds);

// Everything that a reader of the report needs to know of the machine, as a JSON object.
std::string facts_text(const apps::GpuMachine& machine, const ProgramFacts& program,
                       const std::string& program_path);

// The findings of `paceline doctor` about GPUs, as outcomes.
std::vector<CheckOutcome> outcomes_of(const std::vector<apps::Finding>& findings);

// all_reduce_perf of nccl-tests, if it is installed: its bandwidth as a figure.
CheckOutcome run_nccl_tests(int num_gpus);

// Compares the free memory of the GPUs before and after all checks, which `program` tells. Asks it
// again for some seconds, because drivers release memory late.
CheckOutcome check_memory_returned(const std::string& program, const ProgramFacts& before);

}  // namespace paceline::gpu_check
