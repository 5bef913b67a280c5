#pragma once

// What the ranks of one host share in a group that spans hosts: scratch that all of them read, and
// a barrier. Two areas are used in turn, a piece of a call each: a rank that meets in the next
// piece has finished with the last, so the area of the last but one is free.
//
// Thread safety: none; one executor owns it.

#include <functional>
#include <memory>

#include "paceline/engine/collectives/backends/paceline/phase_barrier.h"
#include "paceline/engine/transport/mesh.h"
#include "paceline/engine/transport/message_streams.h"

namespace paceline {

class HostShare {
 public:
  static constexpr std::size_t kAreaBytes = 4 << 20;

  // Collective among the ranks of this host. Error(kSystem) on every one of them when there is no
  // memory. Requires: mesh.shared_memory().
  HostShare(Mesh& mesh, Deadline deadline);

  // For the messages of the ranks, behind what this takes.
  RingMemory ring_memory() const { return {blocks_, kRingOffset}; }

  void begin_piece() { ++turn_; }
  // Of the piece under way.
  std::byte* area(int rank) const;
  // Waits for the other ranks of the host; at the first meeting of a collective they compare their
  // calls. `while_waiting` is called every few milliseconds. Errors as PhaseBarrier and
  // require_same().
  void meet(const Fingerprint& operation, const WaitOptions& wait,
            const std::function<void()>& while_waiting);

 private:
  static constexpr std::size_t kControlBytes = 4096;
  static constexpr std::size_t kRingOffset = kControlBytes + 2 * kAreaBytes;
  static_assert(sizeof(ControlBlock) <= kControlBytes);

  Mesh& mesh_;
  std::shared_ptr<SharedBlocks> blocks_;  // owners: this and the messages
  PhaseBarrier barrier_;
  std::uint32_t announced_ = 0;  // sequence number
  unsigned turn_ = 0;
};

}  // namespace paceline
