#pragma once

// The checks of the ranks' program of `paceline gpu-check`. Each is collective, and returns its
// outcome or throws CheckFailed or Error. Most compare results of the GPU with results of the CPU.
//
// Thread safety: none.

#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include "paceline/engine/collectives/group/process_group.h"

#include "apps/gpu_check/check_list.h"
#include "apps/gpu_check/check_report.h"

namespace paceline::gpu_check {

struct Ranks {
  std::shared_ptr<ProcessGroup> group;
  c10::Device device;
  Setups setup = kHost;
  bool is_quick = false;
  std::string folder;  // the same for all ranks; the command removes it

  int rank() const { return group->rank(); }
  int world_size() const { return group->world_size(); }
};

struct CheckFailed : std::runtime_error {
  using std::runtime_error::runtime_error;
};

CheckOutcome check_collectives(const Ranks& ranks);
CheckOutcome check_messages(const Ranks& ranks);
CheckOutcome check_peer_copies(const Ranks& ranks);
CheckOutcome check_device_0(const Ranks& ranks);
CheckOutcome check_order(const Ranks& ranks);
CheckOutcome check_data_parallel(const Ranks& ranks);
CheckOutcome check_replicas(const Ranks& ranks);
CheckOutcome check_fully_shard_1(const Ranks& ranks);
CheckOutcome check_fully_shard_2(const Ranks& ranks);
CheckOutcome check_fully_shard_3(const Ranks& ranks);
CheckOutcome check_tensor_parallel(const Ranks& ranks);
CheckOutcome check_pipeline(const Ranks& ranks);
CheckOutcome check_checkpoint(const Ranks& ranks);
CheckOutcome check_loader(const Ranks& ranks);
CheckOutcome check_against_c10d(const Ranks& ranks);
CheckOutcome check_graph(const Ranks& ranks);
CheckOutcome check_bandwidth(const Ranks& ranks);
// The faults. The last rank causes the fault; on that rank, only check_out_of_memory() returns.
CheckOutcome check_killed(const Ranks& ranks);
CheckOutcome check_stopped(const Ranks& ranks);
CheckOutcome check_never_called(const Ranks& ranks);
CheckOutcome check_out_of_memory(const Ranks& ranks);

// Whether the program was built with the headers of CUDA and NCCL, which only check_against_c10d()
// and check_graph() need.
bool has_cuda_headers();

inline CheckOutcome not_here(const std::string& why) {
  return {.name = "", .verdict = Verdict::kNotHere, .text = why};
}
inline CheckOutcome passed(const std::string& text = "", const std::string& figures = "") {
  return {.name = "", .verdict = Verdict::kPass, .text = text, .figures = figures};
}

// Blocks the calling thread until the device's current stream has finished its work.
// Error(kTimeout) after 30 s.
void wait_for_device(const Ranks& ranks, const std::string& what);
// Throws CheckFailed unless the values are close; the tensors may be on any devices. Returns the
// largest difference.
double require_close(const std::vector<at::Tensor>& found, const std::vector<at::Tensor>& expected,
                     const std::string& what);

// Prints which devices and libraries the program and its LibTorch can use, as one line of JSON.
void print_probe();

}  // namespace paceline::gpu_check
