#include "paceline/engine/tables/host/cutting.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <memory>
#include <optional>
#include <span>

#include "paceline/engine/core/check.h"
#include "paceline/engine/tables/host/row_store.h"
#include "paceline/engine/tables/host/row_update.h"
#include "paceline/engine/tables/host/table_clock.h"

namespace paceline::tables {

namespace {

void add_row(const TableMemory& memory, std::uint32_t data, std::uint32_t row_floats,
             std::vector<float>& rows) {
  const std::size_t before = rows.size();
  rows.resize(before + row_floats);
  const LongWord* const from = memory.data(data);
  for (std::uint32_t i = 0; i < row_floats; i += 2) {
    const std::uint64_t pair = from[i / 2].load(std::memory_order_relaxed);
    std::memcpy(rows.data() + before + i, &pair,
                std::min<std::size_t>(sizeof pair, (row_floats - i) * sizeof(float)));
  }
}

void add_slot(const TableMemory& memory, std::uint32_t slot, TableCut& cut) {
  for_entries(memory, slot, [&](const Entry& entry) {
    cut.ids.push_back(static_cast<Id>(entry.id.load()));
    cut.sightings.push_back(static_cast<std::int32_t>(entry.sightings));
    cut.used.push_back(static_cast<std::int64_t>(entry.used));
    cut.admitted.push_back(entry.data != 0 ? 1 : 0);
    if (entry.data != 0) add_row(memory, entry.data, cut.row_floats, cut.rows);
  });
}

void add_sessions(const TableMemory& memory, TableCut& cut) {
  for (std::uint32_t i = 0; i < kMaxSessions; ++i) {
    const SessionRecord& session = memory.session(i);
    if (session.number == 0 || session.sequence == 0) continue;
    for (const std::uint64_t number :
         {session.number.load(), session.sequence.load(),
          static_cast<std::uint64_t>(session.position), static_cast<std::uint64_t>(session.size),
          session.digest.load()})
      cut.sessions.push_back(static_cast<std::int64_t>(number));
  }
}

// Holds the locks of all slots, so that no row changes. Each lock is released after its slot has
// been copied.
class HeldSlots {
 public:
  explicit HeldSlots(const TableAccess& access) : memory_(*access.memory) {
    for (std::uint32_t i = 0; i < kNumSlots; ++i)
      locks_[i] = std::make_unique<LockGuard>(access, memory_.slot(i).lock);
  }
  // Calls `copy` for each slot. Slots for which workers wait come first.
  template <class Copy>
  void release_after(Copy copy) {
    const auto release = [&](std::uint32_t slot) {
      copy(slot);
      locks_[slot].reset();
    };
    for (std::uint32_t slot = 0; slot < kNumSlots; ++slot) {
      for (std::uint32_t i = slot; slot % kSlotsBetweenLooks == 0 && i < kNumSlots; ++i)
        if (locks_[i] && (memory_.slot(i).lock.load() & kWaiters) != 0) release(i);
      if (locks_[slot]) release(slot);
    }
  }

 private:
  static constexpr std::uint32_t kSlotsBetweenLooks = 8;
  const TableMemory& memory_;
  std::array<std::unique_ptr<LockGuard>, kNumSlots> locks_;
};

void check_fit(const TableAccess& access, const TableCut& cut) {
  const Settings& settings = access.memory->settings();
  const auto fits = [&](bool is_equal, const char* what, const auto& here, const auto& saved) {
    check(is_equal, "worker {}: {}: table '{}': {} is {}, but {} in the saved table",
          access.self_name(), access.operation, access.table, what, here, saved);
  };
  const std::string optimizer = optimizer_name(settings);
  fits(settings.width == cut.width, "the width", settings.width, cut.width);
  fits(optimizer == cut.optimizer, "the optimizer", optimizer, cut.optimizer);
  fits(floats_of_row(settings) == cut.row_floats, "the number of floats of a row with its state",
       floats_of_row(settings), cut.row_floats);
  fits(settings.seed == cut.seed, "the seed", settings.seed, cut.seed);
  fits(settings.initial_range == cut.initial_range, "initial_range", settings.initial_range,
       cut.initial_range);
  const std::size_t ids = cut.ids.size();
  const auto rows = static_cast<std::size_t>(
      std::count(cut.admitted.begin(), cut.admitted.end(), std::uint8_t{1}));
  check(cut.sightings.size() == ids && cut.used.size() == ids && cut.admitted.size() == ids &&
            cut.rows.size() == rows * cut.row_floats &&
            cut.sessions.size() % TableCut::kSessionNumbers == 0,
        "worker {}: {}: table '{}': the arrays of the saved table have different lengths",
        access.self_name(), access.operation, access.table);
  check(access.header().num_entries == 0,
        "worker {}: {}: table '{}' has rows already; load it before the first push",
        access.self_name(), access.operation, access.table);
}

// Whether id `i` of the cut gets an entry in this table. An id that has not been admitted gets none
// if this table admits every id with its first push.
bool belongs(const TableLayout& layout, const TableCut& cut, std::size_t i, const TakesId& takes) {
  return (!takes || takes(cut.ids[i])) && (cut.admitted[i] != 0 || !layout.is_paired);
}

void check_room(const TableAccess& access, const TableCut& cut, const TakesId& takes) {
  const TableLayout& layout = access.memory->layout();
  std::uint64_t ids = 0, rows = 0;
  for (std::size_t i = 0; i < cut.ids.size(); ++i) {
    if (!belongs(layout, cut, i, takes)) continue;
    ++ids;
    rows += cut.admitted[i];
  }
  if (rows > layout.max_data || ids > layout.max_entries) {
    fail(ErrorCode::kSystem, {.operation = access.operation},
         "worker {}: {}: table '{}' has room for {} rows and {} ids, but the saved table has {} "
         "and {}; raise capacity or candidates",
         access.self_name(), access.operation, access.table, layout.max_data, layout.max_entries,
         rows, ids);
  }
}

void restore_sessions(const TableMemory& memory, const TableCut& cut) {
  std::uint32_t next = 0;
  for (std::size_t i = 0; i < cut.sessions.size(); i += TableCut::kSessionNumbers) {
    while (next < kMaxSessions && memory.session(next).number != 0) ++next;
    if (next == kMaxSessions) return;
    SessionRecord& session = memory.session(next);
    session.sequence = static_cast<std::uint64_t>(cut.sessions[i + 1]);
    session.position = static_cast<std::uint32_t>(cut.sessions[i + 2]);
    session.size = static_cast<std::uint32_t>(cut.sessions[i + 3]);
    session.digest = static_cast<std::uint64_t>(cut.sessions[i + 4]);
    session.ended_at = memory.header().now.load();
    session.number = static_cast<std::uint64_t>(cut.sessions[i]);
  }
}

}  // namespace

TableCut take_cut(const TableAccess& access) {
  const TableMemory& memory = *access.memory;
  const Settings& settings = memory.settings();
  TableHeader& header = access.header();
  std::optional<LockGuard> applying(std::in_place, access, header.applying);
  while (is_applying(header)) {  // the workers that apply the stages may have died
    applying.reset();
    apply_stages(access, header.apply_clock - 1);
    applying.emplace(access, header.applying);
  }
  HeldSlots slots(access);
  applying.reset();
  TableCut cut{.width = settings.width,
               .optimizer = optimizer_name(settings),
               .row_floats = floats_of_row(settings),
               .seed = settings.seed,
               .initial_range = settings.initial_range,
               .lr = std::bit_cast<double>(header.lr.load()),
               .now = header.now};
  add_sessions(memory, cut);
  cut.ids.reserve(header.num_entries);
  cut.rows.reserve(std::size_t{header.num_rows} * cut.row_floats);
  slots.release_after([&](std::uint32_t slot) { add_slot(memory, slot, cut); });
  access.require_open();
  return merge(std::span(&cut, 1));  // sorts the ids in ascending order
}

void restore_cut(const TableAccess& access, const TableCut& cut, const TakesId& takes) {
  check_fit(access, cut);
  check_room(access, cut, takes);
  TableHeader& header = access.header();
  header.lr = std::bit_cast<std::uint64_t>(cut.lr);
  // The ages of the rows do not change; the time of this table goes on from its workers' clocks.
  const std::uint64_t shift = header.now - cut.now;
  const TableLayout& layout = access.memory->layout();
  std::size_t row = 0;
  for (std::size_t i = 0; i < cut.ids.size(); ++i) {
    const float* const values =
        cut.admitted[i] == 0 ? nullptr : cut.rows.data() + cut.row_floats * row++;
    if (!belongs(layout, cut, i, takes)) continue;
    restore_row(access, cut.ids[i], static_cast<std::uint32_t>(cut.sightings[i]),
                static_cast<std::uint64_t>(cut.used[i]) + shift, values);
  }
  restore_sessions(*access.memory, cut);
}

}  // namespace paceline::tables
