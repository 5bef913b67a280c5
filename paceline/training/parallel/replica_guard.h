#pragma once

// Checks that all ranks have the same model: the same parameters (require_same_parameters), with
// the same bits (ReplicaGuard). KeptTensors checks that tensors have not changed since the last
// pass.

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "paceline/engine/collectives/group/process_group.h"
#include "paceline/training/tensor/tensor_marks.h"

namespace paceline {

struct NamedParameter {
  std::string name;
  at::Tensor tensor;
};

// Collective. Throws Error(kInvalid) on every rank if parameters differ: it names the first
// parameter whose name, shape, type, memory layout or requires_grad differs from rank 0's, with
// both descriptions, or the rank that has more or fewer parameters.
void require_same_parameters(ProcessGroup& group, const std::vector<NamedParameter>& parameters);

// Returns the device of all `parameters`; there must be at least one. Error(kInvalid), which names
// two parameters, if they are on different devices; kUnsupported if LibTorch does not support the
// device. Pure.
c10::Device one_device_of(const std::vector<NamedParameter>& parameters, int rank);

// Detects damaged memory in tensors that one pass leaves to the next: a module's buffers
// (BatchNorm's statistics) or a communication hook's tensors. note() hashes them after a pass has
// written them; verify() compares the hashes before the next pass reads them, as an optimizer does
// with its state (training/optim/parameters/guarded_state.h).
//
// When a BatchNorm layer updates its statistics, LibTorch does not change their version counters;
// it changes only that of num_batches_tracked. So if the version of any tensor has changed
// (WriteMark), the new values of all of them are accepted.
//
// Cost: reads the tensors twice per pass. Tensors that are not dense or not on the CPU are left
// out.
//
// Thread safety: none.
class KeptTensors {
 public:
  using Named = std::vector<std::pair<std::string, at::Tensor>>;

  // Records the current values of these tensors as correct, and keeps references to the tensors
  // until the next call or forget().
  void note(const Named& tensors);
  void forget() { kept_.clear(); }
  // Throws DamagedState, which names the first tensor that has changed since note() although no
  // operation wrote to it. `what`: the kind of tensor, such as "buffer"; `step`: the number of
  // steps taken.
  void verify(const char* what, const ProcessGroup& group, std::int64_t step) const;
  // Like verify(), but for use before a pass in which the other ranks wait for this one: an error
  // also aborts the group.
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

// Collective. Throws DamagedState on every rank, as ReplicaGuard::report() does, unless all ranks
// have the same bits in these parameters. Parameters that are not on the CPU are not compared.
void require_equal_replicas(ProcessGroup& group, std::vector<NamedParameter> parameters,
                            std::int64_t step);

// Collective. Error(kInvalid) on every rank if two ranks hold different tensors of the same name,
// because a checkpoint would keep only one of them. Tensors that are not on the CPU are compared by
// shape.
void require_distinct_names(ProcessGroup& group, const std::vector<NamedParameter>& parameters);

// Finds a replica that differs from the others, because a bit in memory has flipped or because one
// rank took a different step.
//
// All ranks' parameters must have the same bits. So in every pass each rank hashes one part of its
// parameters, a different part in each pass, and the hashes are sent with the gradients. Bits are
// compared, not numbers: the payload of a NaN and the sign of a zero matter.
//
// The guard cannot tell damage from rounding: if the ranks' processors differ, nothing that a rank
// computes by itself may depend on the processor (docs/data_parallel.md lists the operations that
// do).
//
// Cost: a hash of 1/`passes` of the parameters in each pass.
//
// Thread safety: none.
class ReplicaGuard {
 public:
  // A difference is detected within `passes` passes. Requires: passes >= 1, parameters on the CPU.
  ReplicaGuard(std::vector<NamedParameter> parameters, std::int64_t passes);

  // The hash of the part that is checked in this pass.
  std::uint64_t hash_part(std::int64_t pass) const;
  // The hash of all parameters.
  std::uint64_t hash_all() const;

  // Collective; call it after hashes differed. Throws DamagedState on every rank, which names the
  // ranks that differ from the majority, or all ranks if there is no majority, and their tensors.
  // `step`: the number of steps taken before.
  [[noreturn]] void report(ProcessGroup& group, std::int64_t step) const;

 private:
  // The hash of a range of the bytes of all parameters in sequence.
  std::uint64_t hash(std::size_t begin, std::size_t end) const;

  const std::vector<NamedParameter> parameters_;
  std::size_t num_bytes_ = 0;
  std::size_t part_bytes_ = 0;
};

}  // namespace paceline
