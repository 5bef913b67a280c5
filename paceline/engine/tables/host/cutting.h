#pragma once

// Taking a cut of a table's memory, restoring one, and the parts of a cut for tables that are
// divided among several servers.
//
// Thread safety: select() and merge() are pure functions; for the others, see TableAccess.

#include <functional>
#include <span>

#include "paceline/engine/tables/host/table_access.h"
#include "paceline/engine/tables/row_options.h"
#include "paceline/engine/tables/table_cut.h"

namespace paceline::tables {

// Decides which ids a table takes from a cut.
using TakesId = std::function<bool(Id)>;

// The ids that `takes` accepts, and all sessions.
TableCut select(const TableCut& cut, const TakesId& takes);
// Joins parts into one cut with all their ids. If several parts have a record of the same session,
// the record of its last push is kept. Requires: no id is in two parts. Throws Error(kInvalid) if
// there are no parts or if they are not of one table.
TableCut merge(std::span<const TableCut> parts);

// Copies the table as it is between two transactions. A push waits only until the rows that it
// needs have been copied, which happens before other rows are copied; pulls do not wait. A
// synchronous table is copied as it is at the end of a clock, without the staged pushes.
TableCut take_cut(const TableAccess& access);

// Puts the ids of a cut that `takes` accepts (null: all) into an empty table. Throws
// Error(kInvalid) if the table is not empty or if its options do not fit; Error(kSystem) if it is
// too small. In both cases no row has changed.
void restore_cut(const TableAccess& access, const TableCut& cut, const TakesId& takes);

}  // namespace paceline::tables
