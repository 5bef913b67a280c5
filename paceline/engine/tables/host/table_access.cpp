#include "paceline/engine/tables/host/table_access.h"

#include <chrono>

#include "paceline/engine/core/awake_clock.h"
#include "paceline/engine/core/check.h"
#include "paceline/engine/core/system/thread.h"
#include "paceline/engine/tables/host/table_workers.h"

namespace paceline::tables {

namespace {

using namespace std::chrono_literals;

constexpr int kSpins = 100;
constexpr std::chrono::nanoseconds kSleep = 2ms;
constexpr int kSleepsBeforeCheck = 5;  // the check of an owner reads files of /proc

// Sleeps while the lock has the same owner, and checks from time to time whether the owner lives.
class OwnerWait {
 public:
  OwnerWait(const TableAccess& access, Word& lock)
      : access_(access), lock_(lock), deadline_(access.deadline) {}

  // `seen` has the bit kWaiters. Returns true if the lock may be taken from the owner in `seen`.
  bool sleep(std::uint32_t seen) {
    futex_wait(lock_, seen, kSleep);
    if (lock_.load() != seen) {
      sleeps_ = 0;
      return false;
    }
    if (++sleeps_ % kSleepsBeforeCheck != 0) return false;
    if (access_.is_closed()) throw TableMoved{};
    const std::uint32_t token = seen & ~kWaiters;
    const WorkerState state = state_of(*access_.memory, token, access_.is_lost);
    if (state == WorkerState::kPresent) {
      if (vigil_.sees_passed(deadline_)) time_out(token);
      return false;
    }
    // The lock `repairing` protects only changes that may be repeated.
    if (&lock_ == &access_.header().repairing) {
      if (state == WorkerState::kFrozen) throw MustTakeOver{};
      return true;
    }
    if (state == WorkerState::kReplaced) return true;
    evict(access_, index_of_token(token), state);
    return false;
  }

 private:
  [[noreturn]] void time_out(std::uint32_t token) const {
    fail(ErrorCode::kTimeout,
         {.operation = access_.operation, .deadline = access_.deadline.timeout()},
         "worker {}: {}: table '{}': worker {} has held a lock of the table since before the "
         "deadline; it is alive, so it may be starved of its processor",
         access_.self_name(), access_.operation, access_.table, name_of(*access_.memory, token));
  }

  const TableAccess& access_;
  Word& lock_;
  Deadline deadline_;
  Vigil vigil_;
  int sleeps_ = 0;
};

bool try_take(Word& lock, std::uint32_t token) {
  std::uint32_t free = 0;
  return lock.load(std::memory_order_relaxed) == 0 && lock.compare_exchange_strong(free, token);
}

void take(const TableAccess& access, Word& lock) {
  for (int i = 0; i < kSpins; ++i) {
    if (try_take(lock, access.token)) return;
    spin_pause();
  }
  for (OwnerWait wait(access, lock);;) {
    std::uint32_t seen = lock.load();
    if (seen == 0) {
      if (lock.compare_exchange_strong(seen, access.token | kWaiters)) return;
      continue;
    }
    if ((seen & kWaiters) == 0) {
      if (!lock.compare_exchange_strong(seen, seen | kWaiters)) continue;
      seen |= kWaiters;
    }
    if (wait.sleep(seen) && lock.compare_exchange_strong(seen, access.token | kWaiters)) return;
  }
}

}  // namespace

bool TableAccess::is_closed() const {
  return header().state.load() != static_cast<std::uint32_t>(TableState::kOpen);
}

void TableAccess::was_revoked() const {
  fail(ErrorCode::kPeerLost, {.operation = operation},
       "worker {}: {}: table '{}': this worker was silent for so long that the others dropped it; "
       "what it pushed before is in the table; open the table again",
       self_name(), operation, table);
}

void TableAccess::require_open() const {
  if (is_closed()) throw TableMoved{};
  const WorkerSlot& slot = self();
  if (phase_of(slot) != WorkerPhase::kPresent && phase_of(slot) != WorkerPhase::kJoining)
    was_revoked();
  if (token_of(index, slot.generation.load()) != token) was_revoked();
}

LockGuard::LockGuard(const TableAccess& access, Word& lock) : lock_(lock), token_(access.token) {
  take(access, lock);
  try {
    access.require_open();
  } catch (...) {
    release(lock_, token_);
    throw;
  }
}

LockGuard::~LockGuard() { release(lock_, token_); }

void release(Word& lock, std::uint32_t token) {
  std::uint32_t seen = token;
  if (lock.compare_exchange_strong(seen, 0)) return;
  if (seen == (token | kWaiters) && lock.compare_exchange_strong(seen, 0)) futex_wake_all(lock);
}

void wait_for_owner(const TableAccess& access, Word& lock) {
  for (int i = 0; i < kSpins; ++i) spin_pause();
  std::uint32_t seen = lock.load();
  OwnerWait wait(access, lock);
  for (const std::uint32_t owner = seen & ~kWaiters; seen != 0 && (seen & ~kWaiters) == owner;
       seen = lock.load()) {
    if ((seen & kWaiters) == 0) {
      if (!lock.compare_exchange_strong(seen, seen | kWaiters)) continue;
      seen |= kWaiters;
    }
    if (wait.sleep(seen)) return;
  }
}

}  // namespace paceline::tables
