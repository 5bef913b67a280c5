#pragma once

// The findings of `paceline doctor` about NVIDIA's GPUs and NCCL: frequent mistakes and faults that
// can be detected before a job starts, each with its cure. Thread safety: pure functions, except
// gpu_machine_here().

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "paceline/launcher/placement/gpus.h"

#include "apps/doctor/doctor_report.h"

namespace paceline::apps {

// The facts about a machine on which the findings depend; tests fill in their own.
struct GpuMachine {
  std::filesystem::path root = "/";  // the folder that contains /sys, /proc and /dev
  std::function<std::optional<std::string>(const std::string& name)> variable;  // like getenv()
  std::vector<std::string> interfaces;              // network interfaces: "eth0", ...
  std::optional<std::uint64_t> locked_memory = {};  // ulimit -l in bytes; empty: unlimited
  // The CUDA runtime and NCCL that were loaded.
  std::string runtime_text;   // "runtime 12.4 (/usr/lib/libcudart.so.12), driver for 12.8"
  std::string runtime_error;  // why CUDA cannot be used, with the cure; empty if it can
  std::string nccl_text, nccl_error;
  int num_visible = 0;  // GPUs that are visible to CUDA
  bool has_nvml = true;
};

// Reads the facts of this machine. Loads the CUDA runtime and NCCL if the machine has a GPU or
// PACELINE_LIBCUDART is set.
GpuMachine gpu_machine_here();
// Returns the findings of all checks, or a single finding if the machine has no GPU.
std::vector<Finding> gpu_findings(const GpuMachine& machine);

}  // namespace paceline::apps
