#pragma once

// Rows in the memory of a table: how they are read, updated and, once expired, removed; and the
// transactions by which rows change.
//
// A reader takes no lock, except after 64 failed attempts. It walks a chain and copies a row, and
// begins again if the row's version, or the slot's count of removals, has changed meanwhile. A
// writer holds the lock of the id's slot, and the allocator's lock if a row appears or is removed.
//
// Thread safety: as TableAccess.

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>

#include "paceline/engine/tables/host/table_access.h"

namespace paceline::tables {

// A change of one row and of everything that belongs to it (chains, lists, the session's position),
// which appears as a whole or not at all, even if the worker is killed in the middle.
//
// A worker first writes the new values into its journal, then commits the journal with one
// exchange, then copies the values to their places. All values are absolute, so that another worker
// can copy them again if this one dies after the exchange. If it dies before, nothing has changed.
// A worker that was revoked meanwhile cannot commit.
//
// The row's version is odd while the values are copied, so a reader notices a half-written row.
//
// Requires: the worker holds the locks of everything that it changes. Thread safety: none; one
// transaction at a time for each worker.
class Transaction {
 public:
  explicit Transaction(const TableAccess& access);

  void set(Word& word, std::uint32_t value) { add(&word, value, sizeof word); }
  void set(LongWord& word, std::uint64_t value) { add(&word, value, sizeof word); }
  // Sets the entry whose version tells readers of the change.
  void changes(Entry& entry);
  // Returns the buffer for the new row. Fill it before commit(), which copies it to `data`.
  float* image_of(std::uint32_t data);

  // Makes the change. Throws Error(kPeerLost) if the worker was revoked: nothing has changed.
  void commit();

 private:
  void add(const void* place, std::uint64_t value, std::uint32_t bytes);

  const TableAccess& access_;
  Journal& journal_;
};

// Copies the values of a committed journal to their places. It may be called any number of times.
void apply_journal(const TableMemory& memory, std::uint32_t worker);

// The phase of a journal, without the number of its transaction.
JournalPhase phase_of(const Journal& journal);
// Sets the phase to kIdle, with the number of the next transaction.
void end_transaction(Journal& journal);
// Makes an idle journal refuse its next commit. Returns false if it is committed.
bool revoke(Journal& journal);

enum class TornReads : bool { kRefused, kAllowed };

// Copies the `width` elements of a row to `out`: its initial values if it is not in the table. A
// torn read may mix the elements of two steps of the row; it is counted.
void read_row(const TableAccess& access, Id id, float* out, TornReads torn);

// Adds further writes, such as the position of the push, to the transaction that changes a row.
using AlsoSet = std::function<void(Transaction&)>;

// Takes a step of the optimizer on a row, which appears if this push admits its id. An id that is
// not admitted yet is only counted. Throws Error(kSystem) if the table is full or the system has no
// memory; nothing has changed then. Other errors as LockGuard.
void push_row(const TableAccess& access, Id id, const float* gradient, const AlsoSet& also_set);

// Removes the expired rows of the slots in [begin, end).
void remove_expired(const TableAccess& access, std::uint32_t begin, std::uint32_t end);

// Loads the rows of a batch into the cache, a block at a time: the buckets of all ids of the block,
// then the first entries of their chains, further entries if needed, and the data. Each pass is a
// short loop, so that the cache misses and the page-table walks of many rows overlap.
template <class IdAt>
class RowPrefetch {
 public:
  // `id_at(place)` returns an id of the batch, from `begin` on.
  RowPrefetch(const TableMemory& memory, std::size_t begin, std::size_t size, IdAt id_at)
      : memory_(memory), next_block_(begin), size_(size), id_at_(id_at) {}
  // Requires: called for each place in turn.
  void at(std::size_t place) {
    if (place == next_block_) load_block();
  }

 private:
  static constexpr std::size_t kBlock = 64, kLine = 64;
  static constexpr std::size_t kLongRow = 4096;  // the hardware prefetcher reads longer rows ahead
  static constexpr int kLongestWalk = 3;

  void load_block() {
    const std::size_t count = std::min(kBlock, size_ - next_block_);
    for (std::size_t i = 0; i < count; ++i) {
      ids_[i] = static_cast<std::uint64_t>(id_at_(next_block_ + i));
      numbers_[i] = memory_.bucket(id_at_(next_block_ + i)).load(std::memory_order_relaxed);
    }
    for (int step = 0; step < kLongestWalk; ++step) {
      for (std::size_t i = 0; i < count; ++i)  // without a branch that waits for memory
        if (numbers_[i] != 0) __builtin_prefetch(&memory_.entry(numbers_[i]));
      for (std::size_t i = 0; i < count; ++i) {
        if (numbers_[i] == 0) continue;
        const Entry& entry = memory_.entry(numbers_[i]);
        if (entry.id.load(std::memory_order_relaxed) != ids_[i])
          numbers_[i] = entry.next.load(std::memory_order_relaxed);
      }
    }
    for (std::size_t i = 0; i < count; ++i) {
      if (numbers_[i] != 0) load_data(memory_.entry(numbers_[i]));
    }
    next_block_ += count;
  }
  void load_data(const Entry& entry) const {
    const std::uint32_t data = entry.data.load(std::memory_order_relaxed);
    if (data == 0 || memory_.layout().data_bytes > kLongRow) return;
    const auto* const row = reinterpret_cast<const std::byte*>(memory_.data(data));
    for (std::size_t at = 0; at < memory_.layout().data_bytes; at += kLine)
      __builtin_prefetch(row + at);
  }

  const TableMemory& memory_;
  std::size_t next_block_;
  const std::size_t size_;
  const IdAt id_at_;
  std::array<std::uint64_t, kBlock> ids_;
  std::array<std::uint32_t, kBlock> numbers_;
};

// For copies of the whole table: calls `visit` for each entry in use of a slot. Requires: this
// worker holds the slot's lock.
void for_entries(const TableMemory& memory, std::uint32_t slot,
                 const std::function<void(const Entry& entry)>& visit);

// Puts a row with all its state back, for loading a saved table. `row` is null if the id has not
// been admitted.
void restore_row(const TableAccess& access, Id id, std::uint32_t sightings, std::uint64_t used,
                 const float* row);

}  // namespace paceline::tables
