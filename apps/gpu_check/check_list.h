#pragma once

// The checks of `paceline gpu-check` that ranks carry out. The command, which starts the ranks and
// watches the time limits, uses this list, and so does the ranks' program (rank/), which has a
// function for each check.

#include <array>
#include <chrono>
#include <string_view>

namespace paceline::gpu_check {

// The kinds of groups in which a check runs.
enum Setups : unsigned {
  kNccl = 1,  // CUDA tensors over NCCL: one rank per GPU
  kHost = 2,  // over the engine, on copies in host memory: several ranks may share a GPU
};

struct CheckSpec {
  std::string_view name;
  std::string_view what;  // the description in the table
  unsigned setups = kNccl | kHost;
  std::chrono::seconds limit{60};
  bool is_fault =
      false;  // a rank fails on purpose: the check needs its own ranks, and only rank 0 reports
};

inline constexpr std::array<CheckSpec, 21> kChecks = {{
    {"collectives", "every collective and element type, compared with the CPU", kNccl | kHost,
     std::chrono::seconds(120)},
    {"messages", "send and receive", kNccl | kHost},
    {"order", "collectives between long kernels on other streams", kNccl | kHost},
    {"data_parallel", "DistributedDataParallel, compared with the CPU", kNccl | kHost},
    {"replicas", "DataParallel over all GPUs in one process, compared with the CPU", kHost},
    {"fully_shard_1", "fully_shard, stage 1, compared with the CPU", kNccl | kHost},
    {"fully_shard_2", "fully_shard, stage 2, compared with the CPU", kNccl | kHost},
    {"fully_shard_3", "fully_shard, stage 3, compared with the CPU", kNccl | kHost},
    {"tensor_parallel", "layers divided among ranks, compared with the CPU", kNccl | kHost},
    {"pipeline", "1F1B over all ranks, compared with the CPU", kNccl | kHost},
    {"checkpoint", "save; restore on the GPU and on the CPU", kHost},
    {"loader", "batches in pinned memory, copied while the GPU computes", kHost},
    {"peer_copies", "copies between every pair of GPUs", kHost},
    {"against_c10d", "losses, compared with LibTorch's ProcessGroupNCCL", kNccl},
    {"graph", "a step captured in a CUDA graph", kNccl},
    {"bandwidth", "bandwidth of all-reduce and of a copy within the GPU", kNccl | kHost},
    {"device_0", "only the rank of GPU 0 uses GPU 0", kNccl | kHost, std::chrono::seconds(20)},
    {"killed", "a rank is killed: the others report which one", kNccl | kHost,
     std::chrono::seconds(40), true},
    {"stopped", "a rank is stopped: the others report which one", kNccl | kHost,
     std::chrono::seconds(40), true},
    {"never_called", "a rank skips a call: the others report which one", kNccl | kHost,
     std::chrono::seconds(40), true},
    {"out_of_memory", "a rank has no memory for a bucket: every rank gets an error", kNccl | kHost,
     std::chrono::seconds(40), true},
}};

// The name of a setup, as in "nccl/order" and in the arguments of the ranks' program.
constexpr std::string_view name_of(Setups setup) { return setup == kNccl ? "nccl" : "host"; }

// The exit code of a rank whose check failed.
inline constexpr int kCheckFailed = 1;

}  // namespace paceline::gpu_check
