#pragma once

// Whether all ranks have the same model: the same parameters (require_same_parameters), with the
// same bits (ReplicaGuard); and whether tensors are as the last pass left them (KeptTensors).

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "paceline/engine/collectives/backends/backend_list.h"
#include "paceline/engine/collectives/group/process_group.h"
#include "paceline/training/tensor/tensor_marks.h"

namespace paceline {

struct NamedParameter {
  std::string name;
  at::Tensor tensor;
};

// Collective. Error(kInvalid), on every rank, that names the first parameter whose name, shape,
// type, memory layout or need of a gradient differs from rank 0's, with both sides, or says which
// rank has more or fewer.
void require_same_parameters(ProcessGroup& group, const std::vector<NamedParameter>& parameters);

// Returns the device of all `parameters`, of which there is at least one. Error(kInvalid) that
// names two on different devices; kUnsupported when a group with this choice of backends does not
// reach it. Pure.
c10::Device one_device_of(const std::vector<NamedParameter>& parameters, int rank,
                          const BackendChoice& choice);

// Notices that tensors which one pass leaves to the next changed in memory by themselves: a
// module's buffers (BatchNorm's statistics), a communication hook's tensors. It hashes them when a
// pass has written them and compares the hashes before the next one reads them, as an optimizer
// does with its state (training/optim/optimizer.h).
//
// Layers write their buffers past LibTorch's count of writes, but count their batches with it. So
// where any of the tensors was written to (WriteMark), all of them are taken as they are.
//
// Cost: reads the tensors twice a pass. Those that are not dense on the CPU are left out.
//
// Thread safety: none.
class KeptTensors {
 public:
  using Named = std::vector<std::pair<std::string, at::Tensor>>;

  // Takes these tensors as right, and shares them until the next call.
  void note(const Named& tensors);
  void forget() { kept_.clear(); }
  // Throws DamagedState that names the first tensor that is not as noted although nothing has
  // written to it. `what`: its kind, "buffer"; `step`: the number of steps taken.
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

// Collective. Throws DamagedState as ReplicaGuard::report(), on every rank, unless all ranks have
// the same bits in these parameters. Parameters that are not on the CPU are not compared.
void require_equal_replicas(ProcessGroup& group, std::vector<NamedParameter> parameters,
                            std::int64_t step);

// Finds a replica that went astray: by a flipped bit in memory, or by a step that one rank took
// otherwise.
// All ranks' parameters must have the same bits, so each rank hashes the same part of them in every
// pass, another part in the next one, and the hashes travel with the gradients. Bits are compared,
// not numbers: the payload of a NaN and the sign of a zero count.
//
// It cannot tell damage from rounding: where the ranks' processors differ, nothing that a rank
// computes by itself may depend on the processor (docs/data_parallel.md lists what does).
//
// Cost: a hash of 1/`passes` of the parameters in each pass.
//
// Thread safety: none.
class ReplicaGuard {
 public:
  // A difference is noticed within `passes` passes. Requires: passes >= 1, parameters on the CPU.
  ReplicaGuard(std::vector<NamedParameter> parameters, std::int64_t passes);

  // The hash of the part whose turn it is in this pass.
  std::uint64_t hash_part(std::int64_t pass) const;
  // The hash of all parameters.
  std::uint64_t hash_all() const;

  // Collective, when hashes differed. Throws DamagedState, on every rank, that names the ranks that
  // differ from most others, or all where there is no majority, and their tensors. `step`: the
  // number of steps taken before.
  [[noreturn]] void report(ProcessGroup& group, std::int64_t step) const;

 private:
  // The hash of a range of all parameters' bytes, one parameter after the other.
  std::uint64_t hash(std::size_t begin, std::size_t end) const;

  const std::vector<NamedParameter> parameters_;
  std::size_t num_bytes_ = 0;
  std::size_t part_bytes_ = 0;
};

}  // namespace paceline
