#pragma once

// Rows in the memory of a table: reading, stepping, and removing those that have expired.
//
// A reader takes no lock. It walks a chain and copies a row, and begins again if a version shows
// that the row, or the chain, changed meanwhile. A writer holds the lock of the id's slot, and the
// allocator's lock if a row appears or goes.
//
// Thread safety: as TableAccess.

#include <cstdint>
#include <functional>

#include "paceline/engine/tables/table_access.h"
#include "paceline/engine/tables/transaction.h"

namespace paceline::tables {

enum class TornReads : bool { kRefused, kAllowed };

// Copies the `width` elements of a row to `out`: its initial values if it is not in the table. A
// torn read may mix the elements of two steps of the row; it is counted.
void read_row(const TableAccess& access, Id id, float* out, TornReads torn);

// Adds the position of the push to the transaction of its step.
using AlsoSet = std::function<void(Transaction&)>;

// Takes a step of the optimizer on a row, which appears if this push admits it; otherwise counts
// the id. Throws Error(kSystem) if the table is full or the system has no memory; nothing has
// changed then. Errors as LockGuard.
void push_row(const TableAccess& access, Id id, const float* gradient, const AlsoSet& also_set);

// Removes the expired rows of slots `begin` to `end`.
void remove_expired(const TableAccess& access, std::uint32_t begin, std::uint32_t end);

// Loads the rows that follow place `i` of a batch into the cache, each part some places ahead of
// its use: first the bucket, then the entry, then the data.
template <class IdAt>
void prefetch_rows(const TableMemory& memory, std::size_t i, std::size_t size, IdAt id_at) {
  constexpr std::size_t kBucket = 16, kEntry = 10, kData = 5;
  constexpr std::size_t kLine = 64;
  if (i + kBucket < size) __builtin_prefetch(&memory.bucket(id_at(i + kBucket)));
  if (i + kEntry < size) {
    const std::uint32_t entry = memory.bucket(id_at(i + kEntry)).load(std::memory_order_relaxed);
    if (entry != 0) __builtin_prefetch(&memory.entry(entry));
  }
  if (i + kData < size) {
    const std::uint32_t entry = memory.bucket(id_at(i + kData)).load(std::memory_order_relaxed);
    const std::uint32_t data =
        entry == 0 ? 0 : memory.entry(entry).data.load(std::memory_order_relaxed);
    if (data == 0) return;
    const auto* const row = reinterpret_cast<const std::byte*>(memory.data(data));
    for (std::size_t at = 0; at < memory.layout().data_bytes; at += kLine)
      __builtin_prefetch(row + at);
  }
}

// For copies of the whole table: calls `visit` for each entry in use of a slot. Requires: this
// worker holds the slot's lock.
void for_entries(const TableMemory& memory, std::uint32_t slot,
                 const std::function<void(const Entry& entry)>& visit);

// Puts a row with all its state back, for loading a saved table. `row` is null if the id has not
// been admitted.
void restore_row(const TableAccess& access, Id id, std::uint32_t sightings, std::uint64_t used,
                 const float* row);

}  // namespace paceline::tables
