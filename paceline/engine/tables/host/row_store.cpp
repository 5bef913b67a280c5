#include "paceline/engine/tables/host/row_store.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <optional>

#include "paceline/engine/core/check.h"
#include "paceline/engine/tables/host/row_update.h"

namespace paceline::tables {

namespace {

constexpr std::uint64_t kNumber = 4;  // Journal::phase is kNumber * transaction number + phase

std::uint64_t word_of(JournalPhase phase, std::uint64_t before) {
  return before / kNumber * kNumber + static_cast<std::uint64_t>(phase);
}

}  // namespace

Transaction::Transaction(const TableAccess& access)
    : access_(access), journal_(access.memory->journal(access.index)) {
  journal_.num_writes = 0;
  journal_.version_at = 0;
  journal_.image_at = 0;
}

void Transaction::add(const void* place, std::uint64_t value, std::uint32_t bytes) {
  journal_.writes[journal_.num_writes++] = {
      .at = access_.memory->offset_of(place), .value = value, .bytes = bytes};
}

void Transaction::changes(Entry& entry) {
  journal_.version_at = access_.memory->offset_of(&entry.version);
  journal_.version = entry.version.load(std::memory_order_relaxed) | 1;
}

float* Transaction::image_of(std::uint32_t data) {
  journal_.image_at = access_.memory->offset_of(access_.memory->data(data));
  return access_.memory->journal_image(access_.index);
}

void Transaction::commit() {
  std::uint64_t phase = journal_.phase.load(std::memory_order_relaxed);
  if (phase % kNumber != static_cast<std::uint64_t>(JournalPhase::kIdle) ||
      !journal_.phase.compare_exchange_strong(phase, word_of(JournalPhase::kCommitted, phase)))
    access_.was_revoked();
  apply_journal(*access_.memory, access_.index);
  end_transaction(journal_);
}

void apply_journal(const TableMemory& memory, std::uint32_t worker) {
  const Journal& journal = memory.journal(worker);
  Word* const version = journal.version_at == 0 ? nullptr : memory.at<Word>(journal.version_at);
  if (version != nullptr) {
    version->store(journal.version, std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_release);
  }
  if (journal.image_at != 0) {
    auto* const to = memory.at<LongWord>(journal.image_at);
    const float* const from = memory.journal_image(worker);
    const std::size_t count = memory.layout().row_floats / 2;
    for (std::size_t i = 0; i < count; ++i) {
      std::uint64_t pair;
      std::memcpy(&pair, from + 2 * i, sizeof pair);
      to[i].store(pair, std::memory_order_relaxed);
    }
  }
  for (std::uint32_t i = 0; i < journal.num_writes; ++i) {
    const JournalWrite& write = journal.writes[i];
    if (write.bytes == sizeof(Word)) {
      memory.at<Word>(write.at)->store(static_cast<std::uint32_t>(write.value),
                                       std::memory_order_release);
    } else {
      memory.at<LongWord>(write.at)->store(write.value, std::memory_order_release);
    }
  }
  if (version != nullptr) version->store(journal.version + 1, std::memory_order_release);
}

JournalPhase phase_of(const Journal& journal) {
  return static_cast<JournalPhase>(journal.phase.load() % kNumber);
}

void end_transaction(Journal& journal) {
  const std::uint64_t phase = journal.phase.load(std::memory_order_relaxed);
  journal.phase.store(word_of(JournalPhase::kIdle, phase + kNumber), std::memory_order_release);
}

bool revoke(Journal& journal) {
  std::uint64_t phase = journal.phase.load();
  while (phase % kNumber == static_cast<std::uint64_t>(JournalPhase::kIdle))
    if (journal.phase.compare_exchange_weak(phase, word_of(JournalPhase::kRevoked, phase)))
      return true;
  return phase % kNumber == static_cast<std::uint64_t>(JournalPhase::kRevoked);
}

namespace {

constexpr int kTriesWithoutLock = 64;

bool is_expired(const TableMemory& memory, std::uint64_t used) {
  const std::uint64_t limit = memory.settings().expire_after;
  const std::uint64_t now = memory.header().now.load(std::memory_order_relaxed);
  // Restored rows may have been used before time 0 of this table, so the signed difference counts.
  return limit != 0 && static_cast<std::int64_t>(now - used) > static_cast<std::int64_t>(limit);
}

// The number of an id's entry, or 0, and the word that refers to the entry.
struct Found {
  std::uint32_t number = 0;
  Word* before = nullptr;
};
Found find(const TableMemory& memory, Id id) {
  Word* before = &memory.bucket(id);
  for (std::uint32_t number = before->load(std::memory_order_acquire); number != 0;) {
    Entry& entry = memory.entry(number);
    if (entry.id.load(std::memory_order_relaxed) == static_cast<std::uint64_t>(id))
      return {number, before};
    before = &entry.next;
    number = before->load(std::memory_order_acquire);
  }
  return {0, before};
}

void copy_floats(const LongWord* from, float* to, std::uint32_t count) {
  std::uint32_t i = 0;
  for (; i + 2 <= count; i += 2) {
    const std::uint64_t pair = from[i / 2].load(std::memory_order_relaxed);
    std::memcpy(to + i, &pair, sizeof pair);
  }
  if (i < count) {
    const std::uint64_t pair = from[i / 2].load(std::memory_order_relaxed);
    std::memcpy(to + i, &pair, sizeof(float));
  }
}

enum class Seen { kRow, kNoRow, kChanging, kTorn };

// One attempt to read a row. `out` has the row's values after kRow and kTorn.
Seen try_read(const TableMemory& memory, Id id, float* out, bool takes_torn) {
  const std::uint32_t slot = slot_of(id);
  const std::uint32_t removals = memory.slot(slot).removals.load(std::memory_order_acquire);
  const std::uint32_t number = find(memory, id).number;
  if (number == 0) {
    // The walk may have left the chain if an entry was removed and used again.
    std::atomic_thread_fence(std::memory_order_acquire);
    const bool is_same = memory.slot(slot).removals.load(std::memory_order_relaxed) == removals;
    return is_same ? Seen::kNoRow : Seen::kChanging;
  }
  Entry& entry = memory.entry(number);
  const std::uint32_t version = entry.version.load(std::memory_order_acquire);
  if (version % 2 != 0 && !takes_torn) return Seen::kChanging;
  const std::uint32_t data = entry.data.load(std::memory_order_relaxed);
  const std::uint64_t used = entry.used.load(std::memory_order_relaxed);
  const bool is_row = data != 0 && !is_expired(memory, used);
  if (is_row) copy_floats(memory.data(data), out, memory.settings().width);
  std::atomic_thread_fence(std::memory_order_acquire);
  const bool is_whole =
      version % 2 == 0 && entry.version.load(std::memory_order_relaxed) == version;
  const bool is_id = entry.id.load(std::memory_order_relaxed) == static_cast<std::uint64_t>(id) &&
                     entry.data.load(std::memory_order_relaxed) == data;
  if (!is_id || (!is_whole && !(is_row && takes_torn))) return Seen::kChanging;
  const std::uint64_t now = memory.header().now.load(std::memory_order_relaxed);
  if (is_row && used != now) entry.used.store(now, std::memory_order_relaxed);
  if (!is_row) return Seen::kNoRow;
  return is_whole ? Seen::kRow : Seen::kTorn;
}

// Entries and data that a transaction takes from, or returns to, the lists of unused ones. The
// Allocation owns the allocator's lock.
class Allocation {
 public:
  Allocation(const TableAccess& access, Transaction& transaction)
      : access_(access),
        memory_(*access.memory),
        header_(access.header()),
        transaction_(transaction),
        guard_(access, header_.allocator) {}

  std::uint32_t new_entry() {
    if (const std::uint32_t free = header_.free_entries; free != 0) {
      // The list of free entries uses the word `sightings`; `next` still leads readers to the end
      // of a chain.
      transaction_.set(header_.free_entries, memory_.entry(free).sightings);
      return free;
    }
    const std::uint32_t number = header_.num_entries + 1;
    if (number > memory_.layout().max_entries) is_full("candidates");
    make_ready(header_.ready_entries, number, memory_.layout().max_entries,
               memory_.layout().entries, memory_.layout().entry_stride);
    transaction_.set(header_.num_entries, number);
    return number;
  }
  std::uint32_t new_data() {
    std::uint32_t number = header_.free_data;
    if (number != 0) {
      transaction_.set(header_.free_data, static_cast<std::uint32_t>(*memory_.data(number)));
    } else {
      number = header_.num_data + 1;
      if (number > memory_.layout().max_data) is_full("capacity");
      make_ready(header_.ready_data, number, memory_.layout().max_data, memory_.layout().data,
                 memory_.layout().data_stride);
      transaction_.set(header_.num_data, number);
    }
    transaction_.set(header_.num_rows, header_.num_rows + 1);
    return number;
  }
  void free_data(std::uint32_t number) {
    transaction_.set(*memory_.data(number), header_.free_data);
    transaction_.set(header_.free_data, number);
    transaction_.set(header_.num_rows, header_.num_rows - 1);
  }
  void free_entry(std::uint32_t number) {
    transaction_.set(memory_.entry(number).sightings, header_.free_entries);
    transaction_.set(header_.free_entries, number);
  }

 private:
  [[noreturn]] void is_full(const char* option) const {
    const Settings& settings = memory_.settings();
    fail(ErrorCode::kSystem, {.operation = access_.operation},
         "worker {}: {}: table '{}' is full: it holds {} of {} rows and {} ids in all; raise {} or "
         "let rows expire (expire_after)",
         access_.self_name(), access_.operation, access_.table, header_.num_rows.load(),
         settings.capacity, header_.num_entries.load(), option);
  }
  // Allocates the pages of the next entries or data, about a megabyte at a time.
  void make_ready(Word& ready, std::uint32_t number, std::uint32_t most, std::size_t offset,
                  std::size_t bytes) const {
    if (number <= ready) return;
    const std::uint32_t begin = ready;
    const auto more = static_cast<std::uint32_t>(
        std::min<std::size_t>(most - begin, std::max<std::size_t>(1, (1 << 20) / bytes)));
    memory_.allocate(offset + begin * bytes, more * bytes);
    ready = begin + more;
  }

  const TableAccess& access_;
  const TableMemory& memory_;
  TableHeader& header_;
  Transaction& transaction_;
  const LockGuard guard_;
};

// Links a new entry into the chain of its id; the writes appear in this order.
void link(const TableMemory& memory, Transaction& transaction, std::uint32_t number, Id id,
          std::uint32_t data, std::uint32_t sightings, std::uint64_t used) {
  Entry& entry = memory.entry(number);
  Word& head = memory.bucket(id);
  transaction.changes(entry);
  transaction.set(entry.id, static_cast<std::uint64_t>(id));
  transaction.set(entry.data, data);
  transaction.set(entry.sightings, sightings);
  transaction.set(entry.used, used);
  transaction.set(entry.next, head);
  transaction.set(head, number);
}

// Requires: the caller owns the lock of the row's slot, so no other worker writes the row.
void read_data(const TableMemory& memory, std::uint32_t data, float* row) {
  std::memcpy(row, reinterpret_cast<const std::byte*>(memory.data(data)),
              memory.layout().row_floats * sizeof(float));
}

}  // namespace

void read_row(const TableAccess& access, Id id, float* out, TornReads torn) {
  const TableMemory& memory = *access.memory;
  Word& lock = memory.slot(slot_of(id)).lock;
  for (int tries = 1;; ++tries) {
    Seen seen = try_read(memory, id, out, torn == TornReads::kAllowed);
    if (seen == Seen::kChanging && tries % kTriesWithoutLock == 0) {
      const LockGuard guard(access, lock);
      seen = try_read(memory, id, out, false);
    }
    if (seen == Seen::kNoRow) return write_initial_values(memory.settings(), id, out);
    if (seen == Seen::kTorn)
      access.self().counts.torn_reads.fetch_add(1, std::memory_order_relaxed);
    if (seen != Seen::kChanging) return;
    wait_for_owner(access, lock);
  }
}

void push_row(const TableAccess& access, Id id, const float* gradient, const AlsoSet& also_set) {
  const TableMemory& memory = *access.memory;
  const Settings& settings = memory.settings();
  const std::uint64_t now = access.header().now.load(std::memory_order_relaxed);
  const LockGuard guard(access, memory.slot(slot_of(id)).lock);
  const Found found = find(memory, id);
  Entry* const entry = found.number == 0 ? nullptr : &memory.entry(found.number);
  const std::uint32_t data = entry == nullptr ? 0 : entry->data.load();
  const bool is_new = entry == nullptr || is_expired(memory, entry->used);
  const std::uint32_t sightings = is_new ? 1 : entry->sightings + (data == 0 ? 1 : 0);
  const bool is_admitted = (!is_new && data != 0) || sightings >= settings.admit_after;

  Transaction transaction(access);
  std::optional<Allocation> allocation;
  const auto allocate = [&]() -> Allocation& {
    if (!allocation) allocation.emplace(access, transaction);
    return *allocation;
  };
  std::uint32_t new_data = data;
  if (is_admitted && data == 0) new_data = allocate().new_data();
  if (!is_admitted && data != 0) {  // the row expired: its id must be admitted again
    allocate().free_data(data);
    new_data = 0;
  }
  if (entry == nullptr) {
    link(memory, transaction, allocate().new_entry(), id, new_data, sightings, now);
  } else {
    transaction.changes(*entry);
    if (new_data != data) transaction.set(entry->data, new_data);
    if (entry->sightings != sightings) transaction.set(entry->sightings, sightings);
    transaction.set(entry->used, now);
  }
  if (is_admitted) {
    float* const row = transaction.image_of(new_data);
    if (is_new || data == 0) {
      write_new_row(settings, id, row);
    } else {
      read_data(memory, data, row);
    }
    step_row(settings, std::bit_cast<double>(access.header().lr.load(std::memory_order_relaxed)),
             row, gradient);
  } else {
    access.self().counts.dropped_gradients.fetch_add(1, std::memory_order_relaxed);
  }
  if (also_set) also_set(transaction);
  transaction.commit();
}

void remove_expired(const TableAccess& access, std::uint32_t begin, std::uint32_t end) {
  const TableMemory& memory = *access.memory;
  if (memory.settings().expire_after == 0) return;
  const std::uint32_t per_slot = memory.layout().buckets_per_slot;
  for (std::uint32_t s = begin; s < end; ++s) {
    SlotState& slot = memory.slot(s);
    const LockGuard guard(access, slot.lock);
    for (std::size_t b = std::size_t{s} * per_slot; b < std::size_t{s + 1} * per_slot; ++b) {
      Word* before = &memory.bucket_number(b);
      for (std::uint32_t number = *before; number != 0; number = *before) {
        Entry& entry = memory.entry(number);
        if (!is_expired(memory, entry.used)) {
          before = &entry.next;
          continue;
        }
        Transaction transaction(access);
        Allocation allocation(access, transaction);
        transaction.changes(entry);
        transaction.set(*before, entry.next);
        transaction.set(slot.removals, slot.removals + 1);
        if (entry.data != 0) allocation.free_data(entry.data);
        transaction.set(entry.data, 0);
        allocation.free_entry(number);
        transaction.commit();
        access.self().counts.expired_rows.fetch_add(1, std::memory_order_relaxed);
      }
    }
  }
}

void for_entries(const TableMemory& memory, std::uint32_t slot,
                 const std::function<void(const Entry& entry)>& visit) {
  const std::size_t first = std::size_t{slot} * memory.layout().buckets_per_slot;
  for (std::size_t b = first; b < first + memory.layout().buckets_per_slot; ++b) {
    for (std::uint32_t number = memory.bucket_number(b); number != 0;
         number = memory.entry(number).next)
      visit(memory.entry(number));
  }
}

void restore_row(const TableAccess& access, Id id, std::uint32_t sightings, std::uint64_t used,
                 const float* row) {
  const TableMemory& memory = *access.memory;
  const LockGuard guard(access, memory.slot(slot_of(id)).lock);
  check(find(memory, id).number == 0, "load: table '{}': row {} already exists", access.table, id);
  Transaction transaction(access);
  Allocation allocation(access, transaction);
  const std::uint32_t data = row == nullptr ? 0 : allocation.new_data();
  link(memory, transaction, allocation.new_entry(), id, data, sightings, used);
  if (data != 0)
    std::memcpy(transaction.image_of(data), row, floats_of_row(memory.settings()) * sizeof(float));
  transaction.commit();
}

}  // namespace paceline::tables
