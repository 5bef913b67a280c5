#pragma once

// One call of a collective among ranks that map each other's memory, with all that its steps need.

#include <cstddef>
#include <cstring>

#include "paceline/collectives/algorithms/schedule.h"
#include "paceline/collectives/backend.h"

namespace paceline {

struct SharedOperation {
  const Collective& call;
  const Fingerprint& fingerprint;
  const WaitOptions& wait;
  std::size_t element;    // bytes
  std::size_t blocks_in;  // blocks of `count` in an input
  // When staged: every rank reduces everything, or there are results that others fetch.
  bool is_one_shot;
  bool hands_around() const {
    return call.op == Op::kReduce || (call.op == Op::kAllReduce && !is_one_shot);
  }
};

// Whether an input holds a block for each rank.
inline bool gives_blocks(Op op) {
  const OpTraits& traits = traits_of(op);
  return traits.input == Extent::kBlocks || traits.input == Extent::kRow ||
         traits.output == Extent::kOwnCount;
}

inline void copy_bytes(std::byte* to, const std::byte* from, std::size_t bytes) {
  if (to != from && bytes > 0) std::memcpy(to, from, bytes);
}

// Where this rank's own contribution to a reduce of a direct schedule begins in its input.
inline std::size_t own_offset(const Schedule& schedule, const Step& reduce) {
  for (std::size_t i = 0; i < reduce.num_operands; ++i) {
    const Place& place = schedule.operands[reduce.first_operand + i].place;
    if (place.space == Space::kInput) return place.offset;
  }
  return 0;
}

}  // namespace paceline
