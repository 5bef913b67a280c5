#include "paceline/engine/tables/host/table_workers.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <random>
#include <system_error>
#include <thread>
#include <vector>

#include <unistd.h>

#include "paceline/engine/core/awake_clock.h"
#include "paceline/engine/core/bytes.h"
#include "paceline/engine/core/check.h"
#include "paceline/engine/core/error_text.h"
#include "paceline/engine/core/system/host.h"
#include "paceline/engine/core/system/thread.h"
#include "paceline/engine/tables/host/row_store.h"
#include "paceline/engine/tables/host/table_clock.h"

namespace paceline::tables {

namespace {

constexpr std::uint64_t claim_of(WorkerPhase phase, std::uint32_t pid) {
  return std::uint64_t{pid} << 8 | static_cast<std::uint64_t>(phase);
}
std::uint32_t claimant(const WorkerSlot& slot) {
  return static_cast<std::uint32_t>(slot.claim.load() >> 8);
}

// A process whose first thread has ended may have other threads that still write.
bool has_threads(std::uint32_t pid) {
  std::error_code error;
  std::filesystem::directory_iterator tasks(fmt::format("/proc/{}/task", pid), error);
  return !error && std::distance(begin(tasks), end(tasks)) > 1;
}

bool is_dead(const WorkerSlot& slot) {
  const std::uint32_t pid = claimant(slot);
  if (pid == static_cast<std::uint32_t>(getpid())) return false;
  const auto status = process_status(static_cast<pid_t>(pid));
  if (!status) return true;
  if (phase_of(slot) != WorkerPhase::kJoining && status->start_ticks != slot.start_ticks)
    return true;
  return (status->state == 'Z' || status->state == 'X') && !has_threads(pid);
}

void reset(WorkerCounts& counts) {
  for (LongWord* const count :
       {&counts.pulled_ids, &counts.pushed_ids, &counts.pushed_rows, &counts.duplicate_pushes,
        &counts.dropped_gradients, &counts.torn_reads, &counts.expired_rows,
        &counts.largest_staleness, &counts.staleness_sum, &counts.pulls})
    *count = 0;
}

void open_locks_of(const TableMemory& memory, std::uint32_t token) {
  release(memory.header().allocator, token);
  release(memory.header().applying, token);
  for (ApplyPart& part : memory.header().parts) release(part.lock, token);
  for (std::uint32_t i = 0; i < kNumSlots; ++i) release(memory.slot(i).lock, token);
}

void end_session(const TableMemory& memory, const WorkerSlot& slot) {
  SessionRecord& session = memory.session(slot.session.load());
  session.ended_at = memory.header().now.load();
  session.owner = 0;
}

// Takes a free slot, or that of an evicted or joining worker whose process has ended.
std::uint32_t claim_slot(const TableAccess& access, const std::string& name) {
  const TableMemory& memory = *access.memory;
  for (std::uint32_t i = 0; i < kMaxWorkers; ++i) {
    WorkerSlot& slot = memory.worker(i);
    std::uint64_t claim = slot.claim.load();
    const auto phase = phase_of(slot);
    // Skips a slot whose stage belongs to the clock that is being applied: the stage is still
    // needed, even if the worker that was applying it has died.
    if (is_applying(access.header()) && access.header().apply_workers >> i & 1) continue;
    const bool is_free =
        phase == WorkerPhase::kFree ||
        ((phase == WorkerPhase::kGone || phase == WorkerPhase::kJoining) && is_dead(slot));
    if (is_free &&
        slot.claim.compare_exchange_strong(
            claim, claim_of(WorkerPhase::kJoining, static_cast<std::uint32_t>(getpid()))))
      return i;
  }
  fail(ErrorCode::kInvalid,
       "worker {}: open_rows: table '{}': {} workers of this host have the "
       "table open, and more are not possible",
       name, access.table, kMaxWorkers);
}

bool is_owned(const TableMemory& memory, const SessionRecord& session) {
  const std::uint32_t owner = session.owner;
  if (owner == 0) return false;
  const WorkerState state = state_of(memory, owner, {});
  return state == WorkerState::kPresent || state == WorkerState::kFrozen;
}

// Completes the last change of the worker that had the session, if that worker is lost. Without
// this, the session's position might still change.
void end_former_worker(const TableAccess& access, std::uint64_t wanted) {
  const TableMemory& memory = *access.memory;
  for (std::uint32_t i = 0; i < kMaxSessions; ++i) {
    if (memory.session(i).number != wanted) continue;
    const std::uint32_t owner = memory.session(i).owner;
    if (owner == 0) return;
    const WorkerState state = state_of(memory, owner, access.is_lost);
    if (state == WorkerState::kDead || state == WorkerState::kFrozen)
      evict(access, index_of_token(owner), state);
  }
}

// Requires: this worker holds the lock `repairing`.
std::uint32_t take_session(const TableAccess& access, const SessionWish& wish) {
  const std::optional<std::uint64_t>& wanted = wish.known;
  const TableMemory& memory = *access.memory;
  SessionRecord* found = nullptr;
  for (std::uint32_t i = 0; i < kMaxSessions; ++i) {
    SessionRecord& session = memory.session(i);
    if (wanted) {
      if (session.number == *wanted) found = &session;
    } else if (session.owner == 0 && (found == nullptr || session.number == 0 ||
                                      (found->number != 0 && session.ended_at < found->ended_at))) {
      found = &session;
      if (session.number == 0) break;
    }
  }
  check(found != nullptr, "worker {}: open_rows: table '{}': {}", access.self_name(), access.table,
        wanted ? fmt::format("session {} is unknown: its record was freed or the table is new, so "
                             "its last push cannot be repeated safely; open the table without a "
                             "session",
                             *wanted)
               : std::string("all sessions are in use"));
  check(!is_owned(memory, *found),
        "worker {}: open_rows: table '{}': session {} is in use by worker {}", access.self_name(),
        access.table, wanted.value_or(0), name_of(memory, found->owner));
  if (!wanted) {
    std::random_device random;
    found->sequence = 0;
    found->position = found->size = 0;
    found->digest = 0;
    found->number = wish.number.value_or(std::uint64_t{random()} << 32 | random() | 1);
  }
  found->owner = access.token;
  return static_cast<std::uint32_t>(found - &memory.session(0));
}

void start_clock(const TableAccess& access) {
  const TableMemory& memory = *access.memory;
  const std::uint64_t bound = memory.settings().bound;
  std::optional<std::uint64_t> others;  // the largest clock of the other present workers
  for (std::uint32_t i = 0; i < kMaxWorkers; ++i)
    if (i != access.index && is_present(memory.worker(i)))
      others = std::max(others.value_or(0), memory.worker(i).clock.load());
  const std::uint64_t largest = others.value_or(access.header().now);
  const bool is_bounded =
      consistency_of(memory.settings()).kind() != Consistency::Kind::kAsynchronous;
  access.self().clock = is_bounded ? largest - std::min(largest, bound) : largest;
}

using namespace std::chrono_literals;

bool is_alive(const TableAccess& access, std::uint32_t token) {
  return state_of(*access.memory, token, access.is_lost) == WorkerState::kPresent;
}

// Waits until no other live worker holds the lock. Workers that take it now see that the memory is
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
  copy_part(layout.entries, header.ready_entries * layout.entry_stride);
  if (!layout.is_paired) copy_part(layout.data, header.ready_data * layout.data_stride);
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
  for (std::uint32_t i = 0; i < kApplyParts; ++i) {
    new_header.parts[i].clock = header.parts[i].clock.load();
    new_header.parts[i].rows = header.parts[i].rows.load();
  }
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
    if (phase_of(slot) == WorkerPhase::kJoining)  // this worker will join the new memory
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

bool has_gone(rpc::Workers& workers, const std::string& worker) {
  if (!workers.wait_until_gone(worker, 0ms)) return false;
  const std::vector<rpc::WorkerInfo> all = workers.list();
  return std::none_of(all.begin(), all.end(), [&](const rpc::WorkerInfo& one) {
    return one.name == worker && one.state == rpc::WorkerInfo::State::kPresent;
  });
}

WorkerPhase phase_of(const WorkerSlot& slot) {
  return static_cast<WorkerPhase>(slot.claim.load() & 0xff);
}

bool is_present(const WorkerSlot& slot) { return phase_of(slot) == WorkerPhase::kPresent; }

std::string name_of(const TableMemory& memory, std::uint32_t token) {
  const WorkerSlot& slot = memory.worker(index_of_token(token));
  return fmt::format("{} (process {})", printable(slot.name), claimant(slot));
}

WorkerState state_of(const TableMemory& memory, std::uint32_t token, const IsLost& is_lost) {
  const WorkerSlot& slot = memory.worker(index_of_token(token));
  const WorkerPhase phase = phase_of(slot);
  if (phase == WorkerPhase::kFree || phase == WorkerPhase::kGone ||
      token_of(index_of_token(token), slot.generation.load()) != token)
    return WorkerState::kReplaced;
  if (is_dead(slot)) return WorkerState::kDead;
  if (phase == WorkerPhase::kPresent && is_lost && is_lost(printable(slot.name)))
    return WorkerState::kFrozen;
  return WorkerState::kPresent;
}

void join_table(TableAccess& access, const std::string& name, const SessionWish& session) {
  const TableMemory& memory = *access.memory;
  access.index = claim_slot(access, name);
  WorkerSlot& slot = access.self();
  end_transaction(memory.journal(access.index));  // a commit of the slot's former worker fails
  slot.generation.fetch_add(1);
  access.token = token_of(access.index, slot.generation);
  slot.pid = static_cast<std::uint32_t>(getpid());
  const auto self = process_status(getpid());
  slot.start_ticks = self ? self->start_ticks : 0;
  slot.name = {};
  put_text(slot.name, name);
  slot.descriptor = static_cast<std::uint32_t>(memory.descriptor());
  slot.staged_rows = 0;
  slot.staged_clock = 0;
  slot.clock = 0;  // no worker may run ahead until start_clock()
  reset(slot.counts);
  try {
    if (session.known) end_former_worker(access, *session.known);
    const LockGuard guard(access, memory.header().repairing);
    slot.session = take_session(access, session);
    slot.claim = claim_of(WorkerPhase::kPresent, slot.pid);
    start_clock(access);
  } catch (...) {
    slot.claim = claim_of(WorkerPhase::kFree, 0);
    throw;
  }
  announce(memory);
}

void leave_table(const TableAccess& access) {
  const LockGuard guard(access, access.header().repairing);
  WorkerSlot& slot = access.self();
  end_session(*access.memory, slot);
  slot.claim = claim_of(WorkerPhase::kFree, 0);
  announce(*access.memory);
}

void evict(const TableAccess& access, std::uint32_t index, WorkerState state) {
  const TableMemory& memory = *access.memory;
  WorkerSlot& slot = memory.worker(index);
  const std::uint32_t generation = slot.generation;
  const LockGuard guard(access, memory.header().repairing);
  if (slot.generation != generation || !is_present(slot)) return;  // another worker was faster
  const std::uint32_t token = token_of(index, generation);
  Journal& journal = memory.journal(index);
  if (state == WorkerState::kFrozen) {
    if (!revoke(journal)) throw MustTakeOver{};
  } else if (phase_of(journal) == JournalPhase::kCommitted) {
    apply_journal(memory, index);
    end_transaction(journal);
    memory.header().num_repaired.fetch_add(1);
  }
  open_locks_of(memory, token);
  end_session(memory, slot);
  memory.header().num_evicted.fetch_add(1);
  slot.claim = state == WorkerState::kFrozen ? claim_of(WorkerPhase::kGone, slot.pid)
                                             : claim_of(WorkerPhase::kFree, 0);
  announce(memory);
}

std::optional<std::uint64_t> smallest_clock(const TableMemory& memory) {
  std::optional<std::uint64_t> smallest;
  for (std::uint32_t i = 0; i < kMaxWorkers; ++i) {
    const WorkerSlot& slot = memory.worker(i);
    if (!is_present(slot)) continue;
    const std::uint64_t clock = slot.clock.load();
    if (!smallest || clock < *smallest) smallest = clock;
  }
  return smallest;
}

void announce(const TableMemory& memory) {
  memory.header().changed.fetch_add(1);
  futex_wake_all(memory.header().changed);
}

MemoryPointer take_over(const TableAccess& access) {
  const TableMemory& old = *access.memory;
  access.header().state = static_cast<std::uint32_t>(TableState::kClosed);
  announce(old);
  wait_until_open(access, access.header().repairing);
  wait_until_open(access, access.header().allocator);
  wait_until_open(access, access.header().applying);
  for (std::uint32_t i = 0; i < kNumSlots; ++i) wait_until_open(access, old.slot(i).lock);
  // From now on only lost workers change the old memory. Each is revoked before its journal is
  // copied, so it completes at most the change that it has committed.
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
