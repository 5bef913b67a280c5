#pragma once

// The memory that the ranks of one host share, and the barrier that keeps them in step:
// PhaseBarrier, and the control blocks and staging areas that it guards (GroupShare, HostShare).

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

// Where a rank's buffer lies, for calls without copies: a symmetric region's number and a byte
// offset.
struct BufferLocation {
  std::int64_t region = -1;  // -1: not in symmetric memory; -2: this rank has no such buffer
  std::uint64_t offset = 0;
};

// A rank's announcement of the collective that it enters.
struct Announcement {
  Fingerprint fingerprint;
  BufferLocation input;
  BufferLocation output;
};

// The head of every rank's block of shared memory. announcements[0..1] belong to collectives with
// even and odd numbers; calls outside the group's numbering, which all have number 0, use [2..3]
// alternately. See invariant (3) of PhaseBarrier. The digests of the fingerprints and `given_up`
// lie beside the phase, so that a peer that needs nothing else fetches a single cache line.
struct ControlBlock {
  alignas(128) std::atomic<std::uint32_t> phase;
  std::atomic<std::uint32_t> given_up;  // the phase at which the rank gave up waiting; 0 if none
  std::uint64_t digests[4];
  alignas(128) std::atomic<std::uint32_t> sleepers;
  // The last collective entered: sequence << 8 | op.
  alignas(128) std::atomic<std::uint64_t> entered;
  alignas(128) Announcement announcements[4];
};
static_assert(offsetof(ControlBlock, digests) == 8 && offsetof(ControlBlock, sleepers) == 128 &&
                  offsetof(ControlBlock, entered) == 256 &&
                  offsetof(ControlBlock, announcements) == 384 && sizeof(Announcement) == 64,
              "transport/FORMAT.md, section 6");

// Keeps the ranks of one host in step. Each rank has a counter of phases in shared memory. A rank
// arrives at a phase by raising its own counter, and passes when every peer's counter has reached
// that phase.
//
// A waiting rank first spins for a moment if each rank has a core of its own, or yields to the
// ranks that share its core. Then it sleeps on the peer's counter (futex) in slices of a few
// milliseconds; between slices it checks for dead peers, abort notices and the deadline.
//
// Invariants. A rank's phase, given_up, entered, digests and announcements are written by that rank
// alone; its sleepers by every rank that waits for it. Counters of phases are compared by their
// signed difference, because they wrap around.
//
// (1) No two ranks are more than one phase apart: a rank stores n in `phase` only after it has
//     passed phase n - 1, and so after every other rank has stored n - 1.
// (2) A rank that has passed phase n sees everything that the others wrote before they arrived
//     at n: an arriving rank's store of `phase` releases these writes, and the waiter's load in
//     has_arrived() acquires them. That makes it safe to read digests, announcements, staging areas
//     and results in symmetric memory, none of which is atomic.
// (3) Memory that a rank reads after phase n may be overwritten by its owner after phase n + 1: the
//     reader reads before it stores n + 1, and the owner writes after loading the reader's n + 1.
//     Announcements are read between the first phase of a collective and the reader's next arrival,
//     so collective s + 2 may use the slot of collective s: between these two all ranks have met in
//     s + 1, in this barrier or through messages. Staging areas: see SharedAreas.
// (4) No sleeper is forgotten. An arriving rank stores `phase`, then loads `sleepers`; a waiting
//     rank adds itself to `sleepers`, then loads `phase`. All four accesses are sequentially
//     consistent, so the waiter sees the new phase, or the arriving rank sees the waiter and wakes
//     it. Acquire and release would not suffice: both ranks could then load the old value. If
//     `phase` changes after the waiter's load, futex_wait() sees the new value, and returns.
// (5) A rank that arrives at phase n after another rank has given up waiting at n does not pass.
//     The rank that gives up stores `given_up`, then loads the phases; the late rank stores its
//     phase, then loads `given_up` of every peer. All four accesses are sequentially consistent, so
//     at least one of the two ranks sees the other's store. If the rank that gives up sees that all
//     have arrived meanwhile, it clears `given_up` and passes. A rank that loaded `given_up` in
//     between fails the group: one unnecessary error near a deadline, but never a wrong result.
// (6) `entered` is only read to report missing ranks, with relaxed order: a stale value makes a
//     report less exact.
//
// On x86-64 and ARM a sequentially consistent load costs the same as an acquiring one.
class PhaseBarrier {
 public:
  // Requires: each rank's block begins with a zeroed ControlBlock; `mesh` and `blocks` outlive this
  // object.
  PhaseBarrier(Mesh& mesh, const SharedBlocks& blocks);

  // Announces the collective that this rank is about to enter. Call before the first
  // arrive_and_wait() of a collective.
  void announce(const Announcement& announcement);
  // agrees() returns whether a peer announced the same fingerprint as this rank for the last
  // announced collective (wrong with a chance of 1 in 2^64); announcement_of() returns the peer's
  // announcement. Requires: this rank has passed a phase since announce().
  bool agrees(int rank) const { return block(rank).digests[slot_] == digest_; }
  const Announcement& announcement_of(int rank) const;

  // Arrives at the next phase and waits for all ranks of the host. Error(kTimeout) names the ranks
  // that did not arrive, and the last collective of each; kPeerLost and kAborted as from Mesh, also
  // if other ranks arrived and then gave up. `while_waiting`, if not empty, is called between
  // sleeps.
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
  std::uint32_t num_uncounted_ = 0;  // how many announced calls had sequence number 0
  std::size_t slot_ = 0;             // index of the announcements in use
  std::uint64_t digest_ = 0;
  SlowWaitSteps steps_;                    // warnings about the collective under way
  std::optional<Deadline> answers_until_;  // set once the collective's deadline has passed
  const bool asks_;                        // ranks of this host may wait for another host
  int waits_without_yields_ = 0;
  int next_without_yields_ = kFewestWaitsWithoutYields;
};

// One call of a collective among ranks that map each other's memory, with everything that its steps
// need.
struct SharedOperation {
  const Collective& call;
  const Fingerprint& fingerprint;
  const WaitOptions& wait;
  std::size_t element;  // bytes of an element
};

inline void copy_bytes(std::byte* to, const std::byte* from, std::size_t bytes) {
  if (to != from && bytes > 0) std::memcpy(to, from, bytes);
}

// The shared memory of the ranks of one host, and their barrier. For each rank there are a control
// block, two staging areas and the rings of its messages.
//
// Pieces of calls use the two areas in turn, so that no extra barrier is needed before an area is
// written again: when all ranks have met in piece n, no rank reads the area of piece n - 1 any
// more, so piece n + 1 may use that area.
//
// Thread safety: none; only one executor uses it.
class SharedAreas {
 public:
  // The memory after the areas, which holds the rings of messages.
  RingMemory ring_memory() const { return {blocks_, ring_offset()}; }

  // Begins the next piece and returns its turn, a counter whose lowest bit selects the area.
  unsigned begin_piece() { return ++turn_; }
  // A rank's area for the current piece, or for the piece at `turn`. An area keeps its contents
  // until the next piece but one.
  std::byte* area(int rank) const { return area(rank, turn_); }
  std::byte* area(int rank, unsigned turn) const {
    return blocks_->of(rank) + kControlBytes + (turn & 1) * area_bytes_;
  }

 protected:
  // Collective among the ranks of this host. All of them throw Error(kSystem) if one of them lacks
  // memory. Requires: mesh.shared_memory(), and `mesh` outlives this object.
  SharedAreas(Mesh& mesh, std::size_t area_bytes, Pages::When pages, Deadline deadline);

  Mesh& mesh_;

 private:
  static constexpr std::size_t kControlBytes = 4096;
  static_assert(sizeof(ControlBlock) <= kControlBytes);
  std::size_t ring_offset() const { return kControlBytes + 2 * area_bytes_; }

  const std::size_t area_bytes_;
  const std::shared_ptr<SharedBlocks> blocks_;  // owners: this object and the message streams
  unsigned turn_ = 0;

 protected:
  PhaseBarrier barrier_;
};

// The areas of a group whose ranks are all on one host. Every collective begins with enter() or
// enter_with_places(): the ranks announce their calls, wait for each other and compare the calls.
class GroupShare : public SharedAreas {
 public:
  static constexpr std::size_t kAreaBytes = 256 << 10;  // two of them stay in a core's L2 cache

  GroupShare(Mesh& mesh, Deadline deadline);

  // Announces this rank's call and waits for all other ranks, which must make the same call. Errors
  // are those of PhaseBarrier and require_same().
  void enter(const SharedOperation& operation, const Announcement& announcement);
  // Like enter(), but also learns where the other ranks' buffers lie.
  void enter_with_places(const SharedOperation& operation, const Announcement& announcement);
  // The announcements of all ranks at the last enter_with_places(). They are copies, which no rank
  // can change any more.
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

  // Waits for the other ranks of the host; at the first meeting of a numbered call they compare
  // their calls. `while_waiting` is called every few milliseconds. Errors: those of PhaseBarrier
  // and require_same().
  void meet(const Fingerprint& operation, const WaitOptions& wait,
            const std::function<void()>& while_waiting);

 private:
  std::uint32_t announced_ = 0;  // sequence number of the last announced collective
};

}  // namespace paceline
