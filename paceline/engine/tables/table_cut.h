#pragma once

// A cut: everything that a table holds at one moment, as plain arrays. It can be saved beside the
// state of a model, and restored into tables on any number of hosts (files/table_files).
//
// It includes the sessions. So a push that was applied in part at that moment continues at the
// right row when it is repeated after the restoration, and one that was applied is not applied
// again.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "paceline/engine/tables/row_options.h"

namespace paceline::tables {

struct TableCut {
  static constexpr std::size_t kSessionNumbers = 5;

  // The rows' bytes depend on these values; a table with others cannot take them.
  std::uint32_t width = 0;
  std::string optimizer;         // "RowAdagrad"
  std::uint32_t row_floats = 0;  // elements and state of the optimizer
  std::uint64_t seed = 0;
  float initial_range = 0;

  double lr = 0;
  std::uint64_t now = 0;  // the table's time

  // An element for each id, in ascending order of ids.
  std::vector<Id> ids;
  std::vector<std::int32_t> sightings;
  std::vector<std::int64_t> used;      // the time of the last pull or push
  std::vector<std::uint8_t> admitted;  // 1 if the id has a row
  std::vector<float> rows;             // [admitted ids, row_floats]

  // kSessionNumbers for each session: its number, and sequence, position, size and digest of its
  // last push.
  std::vector<std::int64_t> sessions;

  bool operator==(const TableCut&) const = default;
};

// Decides which ids a table takes from a cut.
using TakesId = std::function<bool(Id)>;

// The ids that `takes` accepts, and all sessions. Thread safety: pure functions.
TableCut select(const TableCut& cut, const TakesId& takes);
// One cut with the ids of all, for tables that are divided among several servers. Of a session that
// is in several parts, the record of its last push remains. Requires: no id is in two parts. Throws
// Error(kInvalid) if they are not parts of one table.
TableCut merge(std::span<const TableCut> parts);

}  // namespace paceline::tables
