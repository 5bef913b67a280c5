#include "paceline/engine/collectives/backends/paceline/group_share.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include <sched.h>
#include <xxhash.h>

#include "paceline/engine/collectives/backends/paceline/slow_wait.h"
#include "paceline/engine/collectives/op_traits.h"
#include "paceline/engine/core/awake_clock.h"
#include "paceline/engine/core/check.h"
#include "paceline/engine/core/system/thread.h"
#include "paceline/engine/transport/shared_memory.h"

namespace paceline {

namespace {

using namespace std::chrono_literals;

// Spins for about 30 µs: longer than a phase of a small collective takes, far shorter than a time
// slice.
constexpr int kSpins = 1500;
constexpr int kSpinsWhenSharingACore = 20;
// After spinning, a rank yields its core to the ranks that share it, which is faster than sleeping
// and being woken. If another program computes on that core as well, each yield gives that program
// a whole time slice, while a sleeping rank would be woken sooner. So after a yield that took that
// long, a number of waits sleep without yielding; this number doubles each time that a yield takes
// that long again.
constexpr int kYields = 50;
constexpr auto kMaxYieldTime = 200us;
constexpr auto kForeignSlice = 1ms;
constexpr int kMaxSpins = 4096;
constexpr auto kSleepSlice = 2ms;
// How long to wait for the error of a rank that has given up, which the rank sends to all others
// immediately.
constexpr auto kTellingLimit = 5s;

}  // namespace

PhaseBarrier::PhaseBarrier(Mesh& mesh, const SharedBlocks& blocks)
    : mesh_(mesh),
      blocks_(blocks),
      asks_(mesh.neighbours().size() < static_cast<std::size_t>(mesh.world_size())) {}

void PhaseBarrier::announce(const Announcement& announcement) {
  sequence_ = announcement.fingerprint.sequence;
  slot_ = sequence_ == 0 ? 2 + (num_uncounted_++ & 1) : sequence_ & 1;
  steps_ = {};
  answers_until_.reset();
  auto& own = block(mesh_.rank());
  digest_ = XXH3_64bits(&announcement.fingerprint, sizeof announcement.fingerprint);
  own.announcements[slot_] = announcement;
  if (sequence_ != 0) {  // calls with number 0 are not part of the group's numbering
    own.entered.store(static_cast<std::uint64_t>(sequence_) << 8 |
                          static_cast<std::uint8_t>(announcement.fingerprint.op),
                      std::memory_order_relaxed);
  }
  // The digest is written last: it shares a cache line with the phase, and a peer that reads the
  // phase meanwhile takes the line away from this core.
  own.digests[slot_] = digest_;
}

const Announcement& PhaseBarrier::announcement_of(int rank) const {
  return block(rank).announcements[slot_];
}

void PhaseBarrier::throw_given_up(int rank) const {
  const auto limit = Deadline::after(kTellingLimit);
  do {
    mesh_.throw_if_failed();
    std::this_thread::sleep_for(kSleepSlice);
  } while (!limit.expired());
  fail(ErrorCode::kAborted, {.ranks = {mesh_.in_world(rank)}},
       "{}: group {} was abandoned by {}; see its output", mesh_.self(), mesh_.name(),
       mesh_.describe(rank));
}

void PhaseBarrier::arrive_and_wait(const Fingerprint& operation, const WaitOptions& wait,
                                   const std::function<void()>& while_waiting) {
  ++phase_;
  auto& own = block(mesh_.rank());
  own.phase.store(phase_, std::memory_order_seq_cst);
  if (own.sleepers.load(std::memory_order_seq_cst) > 0) futex_wake_all(own.phase);
  try {
    wait_for_all(operation, wait, while_waiting);
  } catch (...) {
    own.given_up.store(phase_, std::memory_order_seq_cst);
    throw;
  }
}

// Gives up the phase (invariant 5). Called before the error is composed, which takes time: from now
// on, a rank that has not arrived yet cannot pass. Returns false if all ranks have arrived
// meanwhile; this rank then passes.
bool PhaseBarrier::give_up() {
  auto& given_up = block(mesh_.rank()).given_up;
  given_up.store(phase_, std::memory_order_seq_cst);
  if (!absent_ranks().empty()) return true;
  given_up.store(0, std::memory_order_seq_cst);
  return false;
}

void PhaseBarrier::wait_for_all(const Fingerprint& operation, const WaitOptions& wait,
                                const std::function<void()>& while_waiting) {
  std::optional<AwakeClock::time_point> begin;  // of the first sleep
  for (const int peer : mesh_.neighbours()) {
    if (!has_arrived(peer) && !spin(peer, wait.may_spin)) {
      if (!begin) begin = AwakeClock::now();
      sleep(peer, operation, wait, *begin, while_waiting);
    }
    if (has_given_up(peer)) throw_given_up(peer);
  }
}

bool PhaseBarrier::spin(int peer, bool may_spin) {
  const bool is_crowded = mesh_.oversubscribed();
  const int spins = may_spin && !is_crowded ? kSpins : kSpinsWhenSharingACore;
  for (int i = 0; i < spins; ++i) {
    if (has_arrived(peer)) return true;
    spin_pause();
  }
  return is_crowded && may_spin && yield_to(peer);
}

bool PhaseBarrier::yield_to(int peer) {
  if (waits_without_yields_ > 0) {
    --waits_without_yields_;
    return false;
  }
  const auto begin = Deadline::Clock::now();
  auto yielded = Deadline::Clock::duration::zero();
  for (int i = 0; i < kYields && yielded < kMaxYieldTime && !has_arrived(peer); ++i) {
    sched_yield();
    yielded = Deadline::Clock::now() - begin;
  }
  const int before = next_without_yields_;
  next_without_yields_ =
      yielded < kForeignSlice ? kFewestWaitsWithoutYields : std::min(2 * before, kMaxSpins);
  if (yielded >= kForeignSlice) waits_without_yields_ = before;
  return has_arrived(peer);
}

void PhaseBarrier::sleep(int peer, const Fingerprint& operation, const WaitOptions& wait,
                         AwakeClock::time_point begin, const std::function<void()>& while_waiting) {
  auto& awaited = block(peer);
  Vigil vigil;
  Deadline deadline = wait.deadline;
  while (!has_arrived(peer)) {
    awaited.sleepers.fetch_add(1, std::memory_order_seq_cst);
    const auto seen = awaited.phase.load(std::memory_order_seq_cst);
    if (static_cast<std::int32_t>(seen - phase_) < 0) futex_wait(awaited.phase, seen, kSleepSlice);
    awaited.sleepers.fetch_sub(1, std::memory_order_seq_cst);
    const bool is_late = vigil.sees_passed(deadline);
    if (has_arrived(peer)) return;
    WaitCheck::run();
    if (while_waiting) while_waiting();
    // A rank that arrived before it left is not missing, so its phase is loaded only after its
    // goodbye was read. A rank of another host has no phase in this memory, and this barrier does
    // not wait for it.
    const auto& here = mesh_.neighbours();
    for (const int left : mesh_.throw_if_failed()) {
      const bool awaited_here = std::find(here.begin(), here.end(), left) != here.end();
      if (awaited_here && !has_arrived(left)) mesh_.throw_lost(left, "has left the group");
    }
    if (mesh_.is_asked()) mesh_.answer(absent_ranks());
    if (is_late && !has_time_for_answers()) {
      if (!give_up()) return;
      throw slow_wait_error(mesh_, operation, wait, begin, describe_absent());
    }
    warn_of_slow_wait(mesh_, operation, begin, asks_ && sequence_ != 0, steps_,
                      [&] { return describe_absent(); });
  }
}

// Called once the deadline has passed. Returns whether the peers may still answer.
bool PhaseBarrier::has_time_for_answers() {
  if (!asks_ || sequence_ == 0) return false;
  if (!answers_until_) {
    mesh_.ask_peers();
    answers_until_ = Deadline::after(kAnswerLimit);
  }
  return !answers_until_->expired();
}

std::uint32_t PhaseBarrier::last_entered(int rank) const {
  return static_cast<std::uint32_t>(block(rank).entered.load(std::memory_order_relaxed) >> 8);
}

std::vector<Awaited> PhaseBarrier::absent_ranks() const {
  std::vector<Awaited> ranks;
  for (const int peer : mesh_.neighbours()) {
    if (!has_arrived(peer)) ranks.push_back({peer, last_entered(peer) >= sequence_});
  }
  return ranks;
}

Missing PhaseBarrier::describe_absent() const {
  const auto absent = absent_ranks();
  const auto suspects = find_suspects(mesh_, absent, asks_ && sequence_ != 0);
  std::vector<Suspect> far;
  std::string text;
  for (const Suspect& suspect : suspects) {
    if (suspect.waiter != mesh_.rank()) {
      far.push_back(suspect);
      continue;
    }
    if (!text.empty()) text += "; ";
    text += describe_absent(suspect.rank);
  }
  if (!far.empty()) text += (text.empty() ? "" : "; ") + describe_suspects(mesh_, far);
  return {text.empty() ? describe_waiting(mesh_, absent) : text, blamed(absent, suspects)};
}

std::string PhaseBarrier::describe_absent(int rank) const {
  const auto sequence = last_entered(rank);
  const auto op = static_cast<Op>(block(rank).entered.load(std::memory_order_relaxed) & 0xff);
  const std::string who = mesh_.describe(rank);
  if (sequence == 0) return who + " has not called any collective yet";
  if (sequence >= sequence_) return who + " arrived but stalled";
  return fmt::format("{} has not arrived: its last call was {} #{}", who, name_of(op), sequence);
}

SharedAreas::SharedAreas(Mesh& mesh, std::size_t area_bytes, Pages::When pages, Deadline deadline)
    : mesh_(mesh),
      area_bytes_(area_bytes),
      blocks_(mesh.shared_memory()->allocate(
          ring_offset() + MessageStreams::bytes_for(mesh.neighbours().size()),
          {pages, ring_offset()}, deadline)),
      barrier_(mesh, *blocks_) {}

GroupShare::GroupShare(Mesh& mesh, Deadline deadline)
    : SharedAreas(mesh, kAreaBytes, Pages::kPresent, deadline),
      announced_(static_cast<std::size_t>(mesh.world_size())) {}

void GroupShare::enter(const SharedOperation& operation, const Announcement& announcement) {
  barrier_.announce(announcement);
  meet(operation);
  for (int peer = 0; peer < mesh_.world_size(); ++peer) {
    if (barrier_.agrees(peer)) continue;
    require_same(operation.fingerprint, barrier_.announcement_of(peer).fingerprint, mesh_.self(),
                 {mesh_.describe(peer), mesh_.in_world(peer)}, mesh_.name());
  }
}

void GroupShare::enter_with_places(const SharedOperation& operation,
                                   const Announcement& announcement) {
  enter(operation, announcement);
  for (int peer = 0; peer < mesh_.world_size(); ++peer)
    announced_[static_cast<std::size_t>(peer)] = barrier_.announcement_of(peer);
}

HostShare::HostShare(Mesh& mesh, Deadline deadline)
    : SharedAreas(mesh, kAreaBytes, Pages::kOwnPresent, deadline) {}

void HostShare::meet(const Fingerprint& operation, const WaitOptions& wait,
                     const std::function<void()>& while_waiting) {
  const bool is_first = operation.sequence != announced_;
  if (is_first) {
    announced_ = operation.sequence;
    barrier_.announce({operation, {}, {}});
  }
  barrier_.arrive_and_wait(operation, wait, while_waiting);
  if (!is_first) return;
  for (const int peer : mesh_.neighbours()) {
    const Fingerprint theirs = barrier_.announcement_of(peer).fingerprint;
    require_same(operation, theirs, mesh_.self(), {mesh_.describe(peer), mesh_.in_world(peer)},
                 mesh_.name());
  }
}

}  // namespace paceline
