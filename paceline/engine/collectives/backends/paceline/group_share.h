#pragma once

// What the ranks of one host share, and how they keep in step: PhaseBarrier, and the control blocks
// and staging areas (GroupShare, HostShare) that it guards.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "paceline/engine/collectives/backend.h"
#include "paceline/engine/collectives/backends/paceline/slow_wait.h"
#include "paceline/engine/transport/mesh.h"
#include "paceline/engine/transport/message_streams.h"
#include "paceline/engine/transport/shared_memory.h"

namespace paceline {

// Where a rank's input and output lie, for zero-copy: a symmetric region's number and a byte
// offset.
struct SharedPlace {
  std::int64_t region = -1;  // -1: not in symmetric memory; -2: this rank has no such buffer
  std::uint64_t offset = 0;
};

// What a rank says about the collective that it enters.
struct Announcement {
  Fingerprint fingerprint;
  SharedPlace input;
  SharedPlace output;
};

// The head of every rank's block of shared memory. announcements[0..1] are those of even and odd
// collectives, [2..3] likewise those of calls outside the group's numbering, which all have number
// 0; see invariant (3) of PhaseBarrier. A digest of each, and whether the rank has given up, lie
// beside the phase, so that peers that need no more fetch one cache line.
struct ControlBlock {
  alignas(128) std::atomic<std::uint32_t> phase;
  std::atomic<std::uint32_t> given_up;  // at this phase; 0: not
  std::uint64_t digests[4];
  alignas(128) std::atomic<std::uint32_t> sleepers;
  alignas(128) std::atomic<std::uint64_t> entered;  // the last collective: sequence << 8 | op
  alignas(128) Announcement announcements[4];
};
static_assert(offsetof(ControlBlock, digests) == 8 && offsetof(ControlBlock, sleepers) == 128 &&
                  offsetof(ControlBlock, entered) == 256 &&
                  offsetof(ControlBlock, announcements) == 384 && sizeof(Announcement) == 64,
              "docs/wire_formats.md, section 6");

// The ranks of one host in step: each has a counter of phases in shared memory. A rank arrives at a
// phase by raising its own counter, and passes when every peer's counter has reached it.
//
// Waiting spins for a moment when each rank has a core of its own, or gives the core to the ranks
// that share it, then sleeps on the peer's counter (futex) in slices of a few milliseconds; between
// slices it looks for dead peers, abort notices and the deadline.
//
// Invariants. phase, given_up, entered, digests and announcements are written by their own rank
// alone; sleepers by every rank that waits for it. Counters of phases are compared by their signed
// difference, because they wrap around.
//
// (1) No two ranks are more than one phase apart: a rank stores n in `phase` only after it has
//     passed n - 1, and so after every other has stored n - 1.
// (2) A rank that has passed phase n sees everything that the others wrote before they arrived
//     there: the store of `phase` releases it, the load in has_arrived() acquires it. This is what
//     makes digests, announcements, staging areas and results in symmetric memory safe to read,
//     none of which is atomic.
// (3) What a rank read after phase n may be overwritten by its owner after phase n + 1: the reads
//     come before the reader's store of n + 1, and the owner overwrites after it has seen that
//     store. Announcements are read between the first phase of a collective and the reader's next
//     arrival, so collective s + 2 may use the place of s: between them every rank has met in
//     s + 1, here or by its messages. Staging areas: see SharedAreas.
// (4) No sleeper is forgotten. An arriving rank stores `phase`, then loads `sleepers`; a waiting
//     rank adds itself to `sleepers`, then loads `phase`. All four are sequentially consistent, so
//     the waiter sees the new phase, or the arriving rank sees the waiter and wakes it. Acquire and
//     release would not do: each of them could then read the old value. If `phase` changes after
//     the waiter's load, the kernel finds another value than the one to sleep on, and returns.
// (5) A rank that arrives at phase n after another has given it up does not pass, as it would if
//     that one had waited. The rank that gives up stores `given_up`, then loads the phases; the
//     late rank stores its phase, then loads `given_up` of every peer. Sequential consistency
//     again: one of them sees the other's store. If the first sees that all have arrived after all,
//     it takes the give-up back and passes. A rank that saw it meanwhile fails the group, which is
//     an error too many near a deadline, never a wrong result.
// (6) `entered` is read for messages only, and relaxed: a value that is out of date makes a message
//     less exact.
//
// On x86-64 and ARM a sequentially consistent load costs the same as an acquiring one.
class PhaseBarrier {
 public:
  // Requires: `blocks` begin with a zeroed ControlBlock per rank; both outlive this object.
  PhaseBarrier(Mesh& mesh, const SharedBlocks& blocks);

  // Says what this rank is about to do. Call before the first arrive_and_wait() of a collective.
  void announce(const Announcement& announcement);
  // Whether a peer announced the same fingerprint (but for one chance in 2^64), and what it
  // announced, for the collective announced last. Requires: passed a phase since.
  bool agrees(int rank) const { return block(rank).digests[slot_] == digest_; }
  const Announcement& announcement_of(int rank) const;

  // Error(kTimeout) names the ranks that did not arrive, and what they did last; kPeerLost and
  // kAborted as Mesh says, also when others arrived here and gave up. `while_waiting`, if there
  // is one, is called between sleeps.
  void arrive_and_wait(const Fingerprint& operation, const WaitOptions& wait,
                       const std::function<void()>& while_waiting = {});

 private:
  static constexpr int kFewestWaitsWithoutYields = 16;

  ControlBlock& block(int rank) const { return *reinterpret_cast<ControlBlock*>(blocks_.of(rank)); }
  bool has_arrived(int rank) const {
    const auto phase = block(rank).phase.load(std::memory_order_seq_cst);
    return static_cast<std::int32_t>(phase - phase_) >= 0;
  }
  bool has_given_up(int rank) const {
    const auto phase = block(rank).given_up.load(std::memory_order_seq_cst);
    return phase != 0 && static_cast<std::int32_t>(phase_ - phase) >= 0;
  }
  [[noreturn]] void throw_given_up(int rank) const;
  bool give_up();
  void wait_for_all(const Fingerprint& operation, const WaitOptions& wait,
                    const std::function<void()>& while_waiting);
  bool spin(int peer, bool may_spin);
  bool yield_to(int peer);
  void sleep(int peer, const Fingerprint& operation, const WaitOptions& wait,
             AwakeClock::time_point begin, const std::function<void()>& while_waiting);
  bool has_time_for_answers();
  std::uint32_t last_entered(int rank) const;
  std::vector<Awaited> absent_ranks() const;
  Missing describe_absent() const;
  std::string describe_absent(int rank) const;

  Mesh& mesh_;
  const SharedBlocks& blocks_;
  std::uint32_t phase_ = 0;
  std::uint32_t sequence_ = 0;
  std::uint32_t num_uncounted_ = 0;  // announced with number 0
  std::size_t slot_ = 0;             // of the announcements in use
  std::uint64_t digest_ = 0;
  SlowWaitSteps steps_;                    // of the collective under way
  std::optional<Deadline> answers_until_;  // once its deadline has passed
  const bool asks_;  // the group spans hosts: a rank of this host may wait for one of another
  int waits_without_yields_ = 0;
  int next_without_yields_ = kFewestWaitsWithoutYields;
};

// One call of a collective among ranks that map each other's memory, with all that its steps need.
struct SharedOperation {
  const Collective& call;
  const Fingerprint& fingerprint;
  const WaitOptions& wait;
  std::size_t element;  // bytes
};

inline void copy_bytes(std::byte* to, const std::byte* from, std::size_t bytes) {
  if (to != from && bytes > 0) std::memcpy(to, from, bytes);
}

// What ranks of one host share: of each rank a control block, two areas of scratch and the rings of
// its messages, and a barrier of them all.
//
// Pieces of calls use the two areas in turn, so that no extra barrier is needed before an area is
// written again: when all ranks have met in piece n, no rank reads the area of piece n - 1 any
// more, so piece n + 1 may write it.
//
// Thread safety: none; one executor owns it.
class SharedAreas {
 public:
  // For the messages of the ranks: the memory behind the areas.
  RingMemory ring_memory() const { return {blocks_, ring_offset()}; }

  // Returns the piece's turn.
  unsigned begin_piece() { return ++turn_; }
  // The area of the piece begun last; or of the piece at `turn`, which is that one or the one
  // before.
  std::byte* area(int rank) const { return area(rank, turn_); }
  std::byte* area(int rank, unsigned turn) const {
    return blocks_->of(rank) + kControlBytes + (turn & 1) * area_bytes_;
  }

 protected:
  // Collective among the ranks of this host. Error(kSystem) on every one of them when memory is
  // lacking. Requires: mesh.shared_memory(), and `mesh` outlives this object.
  SharedAreas(Mesh& mesh, std::size_t area_bytes, Pages::When pages, Deadline deadline);

  Mesh& mesh_;

 private:
  static constexpr std::size_t kControlBytes = 4096;
  static_assert(sizeof(ControlBlock) <= kControlBytes);
  std::size_t ring_offset() const { return kControlBytes + 2 * area_bytes_; }

  const std::size_t area_bytes_;
  const std::shared_ptr<SharedBlocks> blocks_;  // owners: this and the messages
  unsigned turn_ = 0;

 protected:
  PhaseBarrier barrier_;
};

// The areas of a group whose ranks are all on one host. Every collective enters here: the ranks
// announce their calls, wait for each other and compare.
class GroupShare : public SharedAreas {
 public:
  static constexpr std::size_t kAreaBytes = 256 << 10;  // two of them stay in a core's L2 cache

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

 private:
  std::vector<Announcement> announced_;
};

// The areas of the ranks of one host in a group that spans hosts.
class HostShare : public SharedAreas {
 public:
  static constexpr std::size_t kAreaBytes = 4 << 20;

  HostShare(Mesh& mesh, Deadline deadline);

  // Waits for the other ranks of the host; at the first meeting of a collective they compare their
  // calls. `while_waiting` is called every few milliseconds. Errors as PhaseBarrier and
  // require_same().
  void meet(const Fingerprint& operation, const WaitOptions& wait,
            const std::function<void()>& while_waiting);

 private:
  std::uint32_t announced_ = 0;  // sequence number
};

}  // namespace paceline
