#include "paceline/engine/tables/take_over.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>

#include "paceline/engine/core/awake_clock.h"
#include "paceline/engine/core/check.h"
#include "paceline/engine/core/system/thread.h"
#include "paceline/engine/tables/table_workers.h"
#include "paceline/engine/tables/transaction.h"

namespace paceline::tables {

namespace {

using namespace std::chrono_literals;

bool is_alive(const TableAccess& access, std::uint32_t token) {
  return state_of(*access.memory, token, access.is_lost) == WorkerState::kPresent;
}

// Waits until no worker that lives holds the lock. Workers that take it now see that the memory is
// closed, and change nothing.
void wait_until_open(const TableAccess& access, Word& lock) {
  Deadline deadline = access.deadline;
  Vigil vigil;
  for (std::uint32_t seen = lock.load(); seen != 0; seen = lock.load()) {
    const std::uint32_t token = seen & ~kWaiters;
    if (token == access.token || !is_alive(access, token)) return;
    if (vigil.sees_passed(deadline)) {
      fail(ErrorCode::kTimeout, {.operation = access.operation},
           "worker {}: {}: table '{}': worker {} has not finished its change of a row",
           access.self_name(), access.operation, access.table, name_of(*access.memory, token));
    }
    futex_wait(lock, seen, 1ms);
  }
}

// Copies the used parts of the memory. The pages of the copy are allocated first.
void copy(const TableMemory& from, const TableMemory& to) {
  const TableLayout& layout = from.layout();
  const TableHeader& header = from.header();
  const auto copy_part = [&](std::size_t offset, std::size_t bytes) {
    to.allocate(offset, bytes);
    std::memcpy(to.at<std::byte>(offset), from.at<std::byte>(offset), bytes);
  };
  copy_part(layout.workers, layout.entries - layout.workers);
  copy_part(layout.entries, header.ready_entries * sizeof(Entry));
  copy_part(layout.data, std::size_t{header.ready_data} * layout.data_bytes);
  for (std::uint32_t i = 0; i < kMaxWorkers && layout.stage_rows > 0; ++i) {
    const std::uint64_t rows = from.worker(i).staged_rows;
    if (rows == 0) continue;
    copy_part(from.offset_of(from.staged_ids(i)), rows * sizeof(Id));
    copy_part(from.offset_of(from.staged_gradients(i)),
              rows * from.settings().width * sizeof(float));
  }
  TableHeader& new_header = to.header();
  new_header.lr = header.lr.load();
  new_header.now = header.now.load();
  new_header.free_entries = header.free_entries.load();
  new_header.free_data = header.free_data.load();
  new_header.num_entries = header.num_entries.load();
  new_header.num_data = header.num_data.load();
  new_header.ready_entries = header.ready_entries.load();
  new_header.ready_data = header.ready_data.load();
  new_header.num_rows = header.num_rows.load();
  new_header.applied = header.applied.load();
  new_header.apply_clock = header.apply_clock.load();
  new_header.apply_workers = header.apply_workers.load();
  new_header.apply_position = header.apply_position.load();
  new_header.num_evicted = header.num_evicted.load();
  new_header.num_repaired = header.num_repaired.load();
}

// Completes the changes that were committed in the old memory, and removes the lost workers.
void remove_lost(const TableAccess& access, const TableMemory& to) {
  for (std::uint32_t i = 0; i < kMaxWorkers; ++i) {
    const WorkerSlot& old_slot = access.memory->worker(i);
    WorkerSlot& slot = to.worker(i);
    Journal& journal = to.journal(i);
    if (phase_of(journal) == JournalPhase::kCommitted) {
      apply_journal(to, i);
      end_transaction(journal);
      to.header().num_repaired.fetch_add(1);
    }
    if (phase_of(slot) == WorkerPhase::kJoining)  // it will join again, in the new memory
      slot.claim = static_cast<std::uint64_t>(WorkerPhase::kFree);
    if (!is_present(slot)) continue;
    const std::uint32_t token = token_of(i, old_slot.generation.load());
    const WorkerState state = state_of(*access.memory, token, access.is_lost);
    if (token == access.token || state == WorkerState::kPresent) continue;
    end_transaction(journal);
    to.session(slot.session).ended_at = to.header().now.load();
    to.session(slot.session).owner = 0;
    slot.claim = static_cast<std::uint64_t>(WorkerPhase::kFree);
    to.header().num_evicted.fetch_add(1);
  }
}

}  // namespace

MemoryPointer take_over(const TableAccess& access) {
  const TableMemory& old = *access.memory;
  access.header().state = static_cast<std::uint32_t>(TableState::kClosed);
  announce(old);
  wait_until_open(access, access.header().repairing);
  wait_until_open(access, access.header().allocator);
  wait_until_open(access, access.header().applying);
  for (std::uint32_t i = 0; i < kNumSlots; ++i) wait_until_open(access, old.slot(i).lock);
  // From now on only lost workers change the old memory: each completes at most the change that it
  // has committed. The copies of the journals are made after this.
  for (std::uint32_t i = 0; i < kMaxWorkers; ++i)
    if (is_present(old.worker(i)) &&
        !is_alive(access, token_of(i, old.worker(i).generation.load())))
      revoke(old.journal(i));
  MemoryPointer next = TableMemory::make(old.settings(), old.header().epoch + 1);
  copy(old, *next);
  remove_lost(access, *next);
  for (std::uint32_t i = 0; i < kNumSlots; ++i) next->slot(i).lock = 0;
  return next;
}

}  // namespace paceline::tables
