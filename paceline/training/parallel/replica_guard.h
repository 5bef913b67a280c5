#pragma once

// Finds a replica that went astray: a flipped bit in memory, a step that one rank took otherwise.
// All ranks' parameters must have the same bits, so each rank hashes the same part of them in every
// pass, another part in the next one, and the hashes travel with the gradients. Bits are compared,
// not numbers: the payload of a NaN and the sign of a zero count.
//
// It cannot tell damage from rounding: where the ranks' processors differ, all that every rank
// computes by itself must not depend on the processor (docs/data_parallel.md lists what does).
//
// Cost: a hash of 1/`passes` of the parameters in each pass.
//
// Thread safety: none.

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "paceline/engine/collectives/group/process_group.h"
#include "paceline/training/parallel/replica_check.h"

namespace paceline {

// Collective. DamagedState, on every rank, unless all have the same bits in these parameters; as
// ReplicaGuard::report(). Those that are not on the CPU are not compared.
void require_equal_replicas(ProcessGroup& group, std::vector<NamedParameter> parameters,
                            std::int64_t step);

class ReplicaGuard {
 public:
  // A difference is noticed within `passes` passes. Requires: passes >= 1, parameters on the CPU.
  ReplicaGuard(std::vector<NamedParameter> parameters, std::int64_t passes);

  // Of the part whose turn it is in this pass.
  std::uint64_t hash_part(std::int64_t pass) const;
  // Of everything.
  std::uint64_t hash_all() const;

  // Collective, when hashes differed. DamagedState, on every rank, that names the ranks that
  // differ from most others, or all where there is no majority, and their tensors; `step`: the
  // steps taken before.
  [[noreturn]] void report(ProcessGroup& group, std::int64_t step) const;

 private:
  // Of the bytes of all parameters, one after the other.
  std::uint64_t hash(std::size_t begin, std::size_t end) const;

  const std::vector<NamedParameter> parameters_;
  std::size_t num_bytes_ = 0;
  std::size_t part_bytes_ = 0;
};

}  // namespace paceline
