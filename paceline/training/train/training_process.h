#pragma once

// Sets up the process of a training program for fast training: memory, threads, random numbers and
// group. Also describes the libraries with which LibTorch computes, and ends the process.
//
//   int main() {
//     return train::run_guarded([] {
//       const train::TrainingProcess process({.threads = 1});
//       process.print_opening("my_program: 60000 images");
//       ...
//     });
//   }
//
// Thread safety: none; only one TrainingProcess may exist in a process.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include <c10/core/Device.h>

#include "paceline/engine/collectives/group/process_group.h"
#include "paceline/engine/core/job_logical_shards.h"
#include "paceline/training/tensor/tensor_memory.h"

namespace paceline::train {

struct ProcessOptions {
  int threads = 0;             // threads of LibTorch; 0: the launcher's choice
  std::string backend;         // empty: the launcher's choice, or paceline if it made none
  std::string device = "cpu";  // or cuda, cuda:N: see docs/devices.md
  // The logical shards of each step (docs/data_parallel.md); 0: no logical shards. With
  // shards a rank has 1 thread, unless a number was chosen (training/tensor/compute_settings.h).
  std::int64_t logical_shards = paceline::detail::job_logical_shards();
};

class TrainingProcess {
 public:
  // Collective: forms the group (init_process_group()). While this object lives, large tensors are
  // in symmetric memory. LibTorch's generator is seeded with seed + rank. Errors: those of
  // init_process_group(), set_thread_count() and SymmetricTensors.
  explicit TrainingProcess(const ProcessOptions& options = {}, std::uint64_t seed = 0);

  const std::shared_ptr<ProcessGroup>& group() const { return group_; }
  int num_threads() const { return num_threads_; }
  // The device for the model and its batches. A CUDA device is also the current device of the
  // thread that made this object.
  c10::Device device() const { return device_; }
  // On rank 0: prints `title`, how the job was launched, ranks x threads, backend, transport and
  // LibTorch, and a warning with a remedy if the BLAS library is slow.
  void print_opening(const std::string& title) const;

 private:
  const c10::Device device_;  // chosen first, because a CUDA backend takes the current device
  const std::shared_ptr<ProcessGroup> group_;  // shared with the users of group()
  const SymmetricTensors symmetric_tensors_;
  const int num_threads_;
};

// Runs `program` and returns its exit code. If `program` throws, a checkpoint that is being written
// is finished, the exception is printed, and the process ends with the exception's exit code
// (exit_code_of()), without LibTorch's clean-up, which would only delay a restart.
int run_guarded(const std::function<int()>& program);

}  // namespace paceline::train
