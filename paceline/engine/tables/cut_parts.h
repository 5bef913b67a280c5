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
// One cut with the ids of all parts. Of a session that is in several parts, the record of its last
// push remains. Requires: no id is in two parts. Throws Error(kInvalid) if they are not parts of
// one table.
TableCut merge(std::span<const TableCut> parts);

}  // namespace paceline::tables
