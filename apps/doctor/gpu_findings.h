#pragma once

// The findings of `paceline doctor` about NVIDIA's GPUs and NCCL: the frequent failures of their
// users that can be known before a job starts, each with its cure. Thread safety: pure functions,
// but for gpu_machine_here().

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "paceline/launcher/placement/gpus.h"

#include "apps/doctor/doctor_report.h"

namespace paceline::apps {

// The facts and functions on which the findings depend; tests make their own.
struct GpuMachine {
  std::filesystem::path root = "/";  // of /sys, /proc and /dev
  std::function<std::optional<std::string>(const std::string& name)> variable;
  std::vector<std::string> interfaces;              // of the network: "eth0", ...
  std::optional<std::uint64_t> locked_memory = {};  // ulimit -l in bytes; empty: unlimited
  // The CUDA runtime and NCCL, as they were loaded.
  std::string runtime_text;   // "12.4 (/usr/lib/libcudart.so.12), driver for 12.8"
  std::string runtime_error;  // why CUDA cannot be used, with the cure; empty: it can
  std::string nccl_text, nccl_error;
  int num_visible = 0;  // GPUs that CUDA shows
  bool has_nvml = true;
};

// Loads the CUDA runtime and NCCL, where the machine has a GPU.
GpuMachine gpu_machine_here();
// One finding without a GPU; otherwise those of all checks, of which some only tell a drawback.
std::vector<Finding> gpu_findings(const GpuMachine& machine);

}  // namespace paceline::apps
