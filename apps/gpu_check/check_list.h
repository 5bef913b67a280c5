#pragma once

// The checks of `paceline gpu-check` that ranks carry out: for the command, which starts the ranks
// and watches the limits, and for the ranks' program (rank/), which has a function for each.

#include <array>
#include <chrono>
#include <string_view>

namespace paceline::gpu_check {

// In which groups of ranks a check runs.
enum Setups : unsigned {
  kNccl = 1,  // NCCL for CUDA tensors: a rank for each GPU
  kHost = 2,  // the engine, with copies in host memory: several ranks may share a GPU
};

struct CheckSpec {
  std::string_view name;
  std::string_view what;  // for the table
  unsigned setups = kNccl | kHost;
  std::chrono::seconds limit{60};
  bool is_fault =
      false;  // a rank fails on purpose: needs ranks of its own, of which rank 0 reports
};

inline constexpr std::array<CheckSpec, 19> kChecks = {{
    {"collectives", "every collective and element type, against the CPU", kNccl | kHost,
     std::chrono::seconds(120)},
    {"messages", "send and receive", kHost},
    {"order", "collectives between long kernels on other streams", kNccl | kHost},
    {"data_parallel", "DistributedDataParallel, against the CPU", kNccl | kHost},
    {"fully_shard_1", "fully_shard, stage 1, against the CPU", kNccl | kHost},
    {"fully_shard_2", "fully_shard, stage 2, against the CPU", kNccl | kHost},
    {"tensor_parallel", "layers divided among ranks, against the CPU", kNccl | kHost},
    {"pipeline", "1F1B over all ranks, against the CPU", kHost},
    {"checkpoint", "save, restore on the GPU and on the CPU", kHost},
    {"loader", "batches in pinned memory, copied while the GPU computes", kHost},
    {"peer_copies", "copies between each two GPUs", kHost},
    {"against_c10d", "losses of LibTorch's own ProcessGroupNCCL", kNccl},
    {"graph", "a step captured in a CUDA graph", kNccl},
    {"bandwidth", "all-reduce, beside a copy within the GPU", kNccl | kHost},
    {"device_0", "no rank uses GPU 0 but its own", kNccl | kHost, std::chrono::seconds(20)},
    {"killed", "a rank is killed: the others name it", kNccl | kHost, std::chrono::seconds(40),
     true},
    {"stopped", "a rank is stopped: the others name it", kNccl | kHost, std::chrono::seconds(40),
     true},
    {"never_called", "a rank leaves out a call: the others name it", kNccl | kHost,
     std::chrono::seconds(40), true},
    {"out_of_memory", "a rank has no memory for a bucket: every rank hears of it", kNccl | kHost,
     std::chrono::seconds(40), true},
}};

// The word for a setup: in names ("nccl/order") and in the arguments of the ranks' program.
constexpr std::string_view name_of(Setups setup) { return setup == kNccl ? "nccl" : "host"; }

// The exit code of a rank whose check failed.
inline constexpr int kCheckFailed = 1;

}  // namespace paceline::gpu_check
