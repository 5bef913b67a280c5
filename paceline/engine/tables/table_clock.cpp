#include "paceline/engine/tables/table_clock.h"

#include <chrono>

#include "paceline/engine/core/awake_clock.h"
#include "paceline/engine/core/check.h"
#include "paceline/engine/core/system/thread.h"
#include "paceline/engine/tables/table_workers.h"

namespace paceline::tables {

namespace {

using namespace std::chrono_literals;

constexpr std::chrono::nanoseconds kRound = 10ms;
constexpr int kRoundsBeforeCheck = 5;

// Evicts the workers that hold the others up and will not come; returns one that may still come.
std::uint32_t evict_lost(const TableAccess& access, std::uint64_t clock) {
  const TableMemory& memory = *access.memory;
  std::uint32_t slowest = access.index;
  for (std::uint32_t i = 0; i < kMaxWorkers; ++i) {
    const WorkerSlot& slot = memory.worker(i);
    if (i == access.index || !is_present(slot) || slot.clock.load() >= clock) continue;
    const std::uint32_t token = token_of(i, slot.generation.load());
    const WorkerState state = state_of(memory, token, access.is_lost);
    if (state == WorkerState::kDead || state == WorkerState::kFrozen) {
      evict(access, i, state);
    } else if (slowest == access.index || slot.clock < memory.worker(slowest).clock) {
      slowest = i;
    }
  }
  return slowest;
}

}  // namespace

void set_clock(const TableAccess& access, std::uint64_t clock) {
  access.self().clock = clock;
  LongWord& now = access.header().now;
  for (std::uint64_t seen = now.load(); seen < clock && !now.compare_exchange_weak(seen, clock);) {
  }
  access.require_open();  // a copy that was made before does not have this clock
  announce(*access.memory);
}

void wait_for_clocks(const TableAccess& access, std::uint64_t clock) {
  const TableMemory& memory = *access.memory;
  Deadline deadline = access.deadline;
  Vigil vigil;
  for (int sleeps = 1;; ++sleeps) {
    access.require_open();
    const std::uint32_t seen = access.header().changed.load();
    if (smallest_clock(memory).value_or(clock) >= clock) return;
    if (sleeps % kRoundsBeforeCheck == 0) {
      const std::uint32_t slowest = evict_lost(access, clock);
      if (vigil.sees_passed(deadline) && slowest != access.index) {
        fail(ErrorCode::kTimeout,
             {.operation = access.operation, .deadline = access.deadline.timeout()},
             "worker {}: {}: table '{}': worker {} is at clock {}, and this worker at {} may not "
             "be further ahead; it is alive: raise the timeout, or the bound of the consistency",
             access.self_name(), access.operation, access.table,
             name_of(memory, token_of(slowest, memory.worker(slowest).generation)),
             memory.worker(slowest).clock.load(), access.self().clock.load());
      }
    }
    futex_wait(access.header().changed, seen, kRound);
  }
}

std::uint64_t staleness(const TableAccess& access) {
  const std::uint64_t own = access.self().clock.load();
  const std::uint64_t smallest = smallest_clock(*access.memory).value_or(own);
  return own > smallest ? own - smallest : 0;
}

}  // namespace paceline::tables
