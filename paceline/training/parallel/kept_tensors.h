#pragma once

// Notices that tensors which one pass leaves to the next changed in memory by themselves: a
// module's buffers (BatchNorm's statistics), what a communication hook keeps. It hashes them when a
// pass has written them and compares the hashes before the next one reads them, as an optimizer
// does with its state (training/optim/optimizer.h).
//
// Layers write their buffers past LibTorch's count of writes, but count their batches with it. So
// where any of the tensors was written to (write_mark.h), all of them are taken as they are.
//
// Cost: reads the tensors twice a pass. Those that are not dense on the CPU are left out.
//
// Thread safety: none.

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "paceline/engine/collectives/group/process_group.h"
#include "paceline/training/tensor/write_mark.h"

namespace paceline {

class KeptTensors {
 public:
  using Named = std::vector<std::pair<std::string, at::Tensor>>;

  // These tensors are right as they are now. It shares them until the next call.
  void note(const Named& tensors);
  void forget() { kept_.clear(); }
  // DamagedState that names the first tensor that is not as noted although nothing has written to
  // it. `what` it is: "buffer"; `step`: how many were taken.
  void verify(const char* what, const ProcessGroup& group, std::int64_t step) const;
  // As verify(), before a pass for which the other ranks wait: aborts the group with the error.
  void verify_before_pass(const char* what, ProcessGroup& group, std::int64_t step) const;

 private:
  struct Kept {
    std::string name;
    at::Tensor tensor;
    WriteMark mark;
    std::uint64_t hash = 0;
  };
  std::vector<Kept> kept_;
};

}  // namespace paceline
