#pragma once

// What the ranks of a group on one host share: a control block and two staging areas of each, and a
// barrier. Every collective enters here: the ranks announce their calls, wait for each other and
// compare.
//
// The areas are used in turn, one for each piece of a call, so that no phase is needed for
// "everybody is done": a rank that arrives at the next phase has finished with the last area but
// one.
//
// Thread safety: none; one executor owns it.

#include <memory>
#include <span>
#include <vector>

#include "paceline/engine/collectives/backends/paceline/phase_barrier.h"
#include "paceline/engine/collectives/backends/paceline/shared_operation.h"
#include "paceline/engine/transport/mesh.h"
#include "paceline/engine/transport/message_streams.h"

namespace paceline {

class GroupShare {
 public:
  static constexpr std::size_t kAreaBytes = 256 << 10;  // two of them stay in a core's L2 cache

  // Collective. Error(kSystem) on every rank when memory is lacking. Requires:
  // mesh.shared_memory(), and `mesh` outlives this object.
  GroupShare(Mesh& mesh, Deadline deadline);

  // Says what this rank is about to do and waits for all others, which must be about to do the
  // same. Errors as PhaseBarrier and require_same().
  void enter(const SharedOperation& operation, const Announcement& announcement);
  // As enter(), and learns where the others' buffers lie.
  void enter_with_places(const SharedOperation& operation, const Announcement& announcement);
  // What the ranks said at the last enter_with_places(): copies, so that no rank changes them any
  // more.
  std::span<const Announcement> announced() const { return announced_; }
  const Announcement& announced(int rank) const {
    return announced_[static_cast<std::size_t>(rank)];
  }
  void meet(const SharedOperation& operation) {
    barrier_.arrive_and_wait(operation.fingerprint, operation.wait);
  }

  // For the messages of the ranks, behind what this takes.
  RingMemory ring_memory() const { return {blocks_, kRingOffset}; }

  // Returns the piece's turn.
  unsigned begin_piece() { return ++turn_; }
  // Of the piece begun last, or of one that began at `turn`: that one or the one before.
  std::byte* area(int rank) const { return area(rank, turn_); }
  std::byte* area(int rank, unsigned turn) const {
    return blocks_->of(rank) + kControlBytes + (turn & 1) * kAreaBytes;
  }

 private:
  static constexpr std::size_t kControlBytes = 4096;
  static constexpr std::size_t kRingOffset = kControlBytes + 2 * kAreaBytes;
  static_assert(sizeof(ControlBlock) <= kControlBytes);

  Mesh& mesh_;
  std::shared_ptr<SharedBlocks> blocks_;  // owners: this and the messages
  PhaseBarrier barrier_;
  std::vector<Announcement> announced_;
  unsigned turn_ = 0;
};

}  // namespace paceline
