#pragma once

// Parts of a cut, for tables that are divided among several servers.
//
// Thread safety: pure functions.

#include <functional>
#include <span>

#include "paceline/engine/tables/row_options.h"
#include "paceline/engine/tables/table_cut.h"

namespace paceline::tables {

// Decides which ids a table takes from a cut.
using TakesId = std::function<bool(Id)>;

// The ids that `takes` accepts, and all sessions.
TableCut select(const TableCut& cut, const TakesId& takes);
// Joins parts into one cut with all their ids. If several parts have a record of the same session,
// the record of its last push is kept. Requires: no id is in two parts. Throws Error(kInvalid) if
// the parts are not of one table.
TableCut merge(std::span<const TableCut> parts);

}  // namespace paceline::tables
