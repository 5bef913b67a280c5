#pragma once

// The memory of a table: plain structs that all workers of a host map. Everything that two
// processes may touch at the same time is an atomic; no struct holds a pointer.
//
//   header | workers | sessions | slots | journals | buckets | entries | data | stages
//
// An id belongs to one of 1,024 slots, each with a lock and an equal share of the buckets. A bucket
// is the head of a chain of entries; an entry refers to the data of its row, which are the row's
// elements and the state of the optimizer. Entries and data are numbered from 1; 0 stands for none.
// The pages of entries and data are allocated as rows appear, those of the stages as pushes are
// staged, and all other pages when the table is made.
//
// If the first push of an id admits it, every entry has data. Then an entry and its data have the
// same number, since they are taken and returned together, and the data follow their entry, so that
// a lookup touches one page fewer.

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

#include "paceline/engine/tables/row_options.h"

namespace paceline::tables {

using Word = std::atomic<std::uint32_t>;
using LongWord = std::atomic<std::uint64_t>;
static_assert(Word::is_always_lock_free && LongWord::is_always_lock_free);

inline constexpr std::uint32_t kNumSlots = 1024;
inline constexpr std::uint32_t kMaxWorkers = 64;
inline constexpr std::uint32_t kMaxSessions = 256;
inline constexpr std::uint32_t kMaxWidth = 16'384;

// RowOptions as plain numbers, so that two workers' options can be compared.
struct Settings {
  std::uint32_t width = 0, optimizer = 0;
  std::array<double, 4> optimizer_numbers{};  // without the learning rate
  double lr = 0;
  std::uint32_t consistency = 0, bound = 0;
  std::uint64_t capacity = 0, seed = 0, candidates = 0, expire_after = 0;
  std::uint32_t admit_after = 0;
  float initial_range = 0;

  // Throws Error(kInvalid) for options that no table can have.
  static Settings of(const std::string& table, const RowOptions& options);
  // The first option that differs, such as "width is 64 here and 32 there"; empty if none differs.
  std::string difference(const Settings& other) const;
};

Consistency consistency_of(const Settings& settings);
std::string optimizer_name(const Settings& settings);

enum class TableState : std::uint32_t {
  kOpen = 1,
  kClosed = 2,  // the rows have moved to new memory: nothing may be read or written here any more
};

// A lock holds the token of its owner, or 0 (table_access.h).

// A part of the rows of a clock. The workers that wait for the clock apply different parts at the
// same time (table_clock.h).
struct alignas(64) ApplyPart {
  static constexpr std::uint64_t kComplete = ~std::uint64_t{0};
  Word lock;       // owned by the worker that applies it
  LongWord clock;  // 1 + the clock to which `rows` belongs
  LongWord rows;   // how many rows have taken the clock's step, or kComplete
};
inline constexpr std::uint32_t kApplyParts = 16;

struct TableHeader {
  static constexpr std::uint64_t kMagic = 0x3330'7377'6f72'6c70;  // "plrows03"
  std::uint64_t magic;
  std::uint64_t number;  // random; tells the memories of two tables apart
  std::uint64_t epoch;   // 1 for the first memory of a table, one more after each take-over
  Settings settings;
  Word state;    // TableState
  Word changed;  // counts ticks, arrivals and departures; workers that wait for a clock sleep on it
  LongWord lr;   // the bits of the learning rate, a double
  LongWord now;  // the largest clock that any worker has had
  Word allocator;                  // the lock of the members below
  Word free_entries, free_data;    // the heads of lists of unused entries and data
  Word num_entries, num_data;      // used and free ones; greater numbers were never used
  Word ready_entries, ready_data;  // entries and data whose pages are allocated
  Word num_rows;                   // admitted rows
  Word repairing;                  // held by a worker that joins or leaves, or evicts another one
  Word applying;                   // the lock for beginning or ending the application of a clock
  Word apply_claims;               // spreads the parts over the workers
  LongWord applied;                // the number of clocks whose staged pushes have been applied
  LongWord apply_clock;            // 1 + the clock applied last; above `applied` while in progress
  LongWord apply_workers;          // the workers that staged pushes in that clock, a bit for each
  Word num_evicted, num_repaired;  // lost workers; unfinished updates completed for them
  std::array<ApplyPart, kApplyParts> parts;
};

// The counts of one worker, for Rows::Stats.
struct WorkerCounts {
  LongWord pulled_ids, pushed_ids, pushed_rows, duplicate_pushes, dropped_gradients, torn_reads,
      expired_rows, largest_staleness, staleness_sum, pulls;
};

enum class WorkerPhase : std::uint32_t { kFree, kJoining, kPresent, kGone };

// A worker of this host that has the table open.
struct alignas(64) WorkerSlot {
  LongWord claim;   // WorkerPhase in the lowest 8 bits, above them the pid; claimed by one exchange
  Word generation;  // counts the workers that have had this slot
  std::uint32_t pid;
  std::uint64_t start_ticks;  // with the pid, identifies the process
  Word descriptor;            // of the memory in that process
  Word session;               // index of its SessionRecord
  LongWord clock;
  LongWord staged_rows;   // rows in its stage
  LongWord staged_clock;  // 1 + the clock to which these rows belong
  std::array<char, 128> name;
  WorkerCounts counts;
};

// How far the pushes of one session are applied. A push changes its record only in the transactions
// that change rows, so the record says exactly which rows of which push have been changed.
struct alignas(64) SessionRecord {
  LongWord number;  // 0: free
  Word owner;       // the token of the worker that uses it, or 0
  Word position;    // how many rows of push `sequence` are done
  Word size;        // the number of rows of that push
  Word unused;
  LongWord sequence;
  LongWord digest;    // of the ids of that push
  LongWord ended_at;  // the table's time at which its worker left or was evicted
};

struct alignas(64) SlotState {
  Word lock;
  Word removals;  // counts entries that were taken out of the slot's chains
};

struct Entry {
  LongWord id;
  Word version;    // odd while the row is being written
  Word next;       // in the chain
  Word data;       // 0: not admitted yet
  Word sightings;  // pushes of the id, counted until it is admitted
  LongWord used;   // the table's time at the last pull or push
};
static_assert(sizeof(Entry) == 32);

// A change that a worker is about to make (row_store.h).
struct JournalWrite {
  std::uint64_t at = 0;  // offset in the memory
  std::uint64_t value = 0;
  std::uint32_t bytes = 0, unused = 0;
};
enum class JournalPhase : std::uint64_t { kIdle, kCommitted, kRevoked };
struct alignas(64) Journal {
  static constexpr std::uint32_t kMaxWrites = 24;
  LongWord phase;
  std::uint64_t version_at = 0, image_at = 0;  // 0: none
  std::uint32_t version = 0, num_writes = 0;
  std::array<JournalWrite, kMaxWrites> writes;
  // The image of the row follows.
};

// The offsets and sizes of the parts of the memory. Thread safety: a value.
struct TableLayout {
  explicit TableLayout(const Settings& settings);

  std::uint32_t row_floats;  // elements and state, an even number
  std::uint32_t buckets_per_slot;
  std::uint32_t max_entries, max_data;
  std::uint32_t stage_rows;  // rows that a worker may push in one clock; 0 unless synchronous
  bool is_paired;            // entries and data have the same numbers (see above)
  std::size_t journal_bytes, data_bytes, stage_bytes;  // of a journal, of a row, of a stage
  std::size_t entry_stride, data_stride;               // bytes from one entry, or data, to the next
  std::size_t workers, sessions, slots, journals, stages, buckets, entries, data;  // offsets
  std::size_t bytes;
};

}  // namespace paceline::tables
