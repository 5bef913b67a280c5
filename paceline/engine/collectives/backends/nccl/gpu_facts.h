#pragma once

// The facts about NCCL and its GPU that the ranks of a group compare before NCCL connects them: a
// difference would otherwise show as a hang, or as an error that names no rank. Thread safety: pure
// functions, except gpu_facts_here().

#include <functional>
#include <string>
#include <vector>

#include "paceline/engine/collectives/backends/nccl/nccl_api.h"
#include "paceline/engine/rendezvous/launch_environment.h"

namespace paceline {

struct GpuFacts {
  int nccl_version = 0;
  std::string nccl_path;
  std::string host;    // distinguishes hosts: host_token()
  std::string bus_id;  // distinguishes the GPUs of a host: "0000:3b:00.0"
  int device = 0;      // the GPU's number in this process
  int visible = 0;     // how many GPUs this process sees

  std::string encode() const;
  // Error(kCorrupt) for a text that encode() did not write.
  static GpuFacts decode(const std::string& text);
};

// The device on which a rank works unless the program has chosen another one: the local rank,
// modulo the number of visible GPUs. So it is device 0 where the launcher shows each rank one GPU.
// Requires: `visible` is at least 1.
int device_of_local_rank(int local_rank, int visible);

// Returns the facts of this rank. If the thread's current device is still 0, first makes that of
// the local rank current: a program that chooses no device would put all ranks of a host on GPU 0.
// Errors: those of CudaApi::require(), for example if there is no GPU.
GpuFacts gpu_facts_here(const NcclApi& api, const LaunchEnvironment& who);

// Error(kInvalid) if two ranks have different versions of NCCL, or the same GPU. `all` is in the
// order of ranks; `name_of` names a rank with its host. The text is the same on every rank.
void require_one_nccl(const std::vector<GpuFacts>& all,
                      const std::function<std::string(std::size_t rank)>& name_of);
void require_own_gpus(const std::vector<GpuFacts>& all,
                      const std::function<std::string(std::size_t rank)>& name_of);

}  // namespace paceline
