#pragma once

// Rows in the memory of a table: reading, stepping, and removing those that have expired.
//
// A reader takes no lock. It walks a chain and copies a row, and begins again if a version shows
// that the row, or the chain, changed meanwhile. A writer holds the lock of the id's slot, and the
// allocator's lock if a row appears or goes.
//
// Thread safety: as TableAccess.

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>

#include "paceline/engine/tables/host/table_access.h"
#include "paceline/engine/tables/host/transaction.h"

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

// Loads the rows of a batch into the cache, each part some places ahead of its use: first the
// bucket, then the first entry of its chain, the second one if that is needed, and the data.
template <class IdAt>
class RowPrefetch {
 public:
  // `id_at(place)` returns an id of the batch, from `begin` on.
  RowPrefetch(const TableMemory& memory, std::size_t begin, std::size_t size, IdAt id_at)
      : memory_(memory), size_(size), id_at_(id_at) {
    for (std::size_t place = begin; place < std::min(begin + kBucket, size); ++place) start(place);
  }
  // Requires: called for each place in turn.
  void at(std::size_t place) {
    if (place + kBucket < size_) start(place + kBucket);
    if (place + kFirst < size_) {
      const std::uint32_t first = head(place + kFirst);
      if (first != 0) __builtin_prefetch(&memory_.entry(first));
    }
    if (place + kSecond < size_) {
      const std::uint32_t first = head(place + kSecond);
      const std::uint32_t second = first == 0 ? 0 : after(first, place + kSecond);
      if (second != 0 && second != first) __builtin_prefetch(&memory_.entry(second));
    }
    if (place + kData < size_) load_data(place + kData);
  }

 private:
  static constexpr std::size_t kBucket = 16, kFirst = 12, kSecond = 8, kData = 5;
  static constexpr std::size_t kLine = 64;
  static constexpr int kLongestWalk = 4;

  void start(std::size_t place) {
    buckets_[place % kBucket] = &memory_.bucket(id_at_(place));
    __builtin_prefetch(buckets_[place % kBucket]);
  }
  std::uint32_t head(std::size_t place) const {
    return buckets_[place % kBucket]->load(std::memory_order_relaxed);
  }
  // The entry itself if it has the id of that place, otherwise the next one in its chain.
  std::uint32_t after(std::uint32_t number, std::size_t place) const {
    const Entry& entry = memory_.entry(number);
    const bool is_it =
        entry.id.load(std::memory_order_relaxed) == static_cast<std::uint64_t>(id_at_(place));
    return is_it ? number : entry.next.load(std::memory_order_relaxed);
  }
  void load_data(std::size_t place) const {
    std::uint32_t number = head(place);
    for (int i = 0; i < kLongestWalk && number != 0; ++i) {
      const std::uint32_t next = after(number, place);
      if (next == number) break;
      number = next;
    }
    const std::uint32_t data =
        number == 0 ? 0 : memory_.entry(number).data.load(std::memory_order_relaxed);
    if (data == 0) return;
    const auto* const row = reinterpret_cast<const std::byte*>(memory_.data(data));
    for (std::size_t at = 0; at < memory_.layout().data_bytes; at += kLine)
      __builtin_prefetch(row + at);
  }

  const TableMemory& memory_;
  const std::size_t size_;
  const IdAt id_at_;
  std::array<Word*, kBucket> buckets_{};
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
