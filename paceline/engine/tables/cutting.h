#pragma once

// Taking a cut of a table's memory, and restoring one.
//
// Thread safety: as TableAccess.

#include "paceline/engine/tables/table_access.h"
#include "paceline/engine/tables/table_cut.h"

namespace paceline::tables {

// Copies the table as it is between two transactions. A push waits only until the rows that it
// needs have been copied, which happens before other rows are copied; pulls do not wait. For a
// synchronous table the moment is the end of a clock: staged pushes are not part of it.
TableCut take_cut(const TableAccess& access);

// Puts the ids of a cut that `takes` accepts (null: all) into an empty table. Throws
// Error(kInvalid) if the table is not empty or if its options do not fit; Error(kSystem) if it is
// too small. Before a row changes in both cases.
void restore_cut(const TableAccess& access, const TableCut& cut, const TakesId& takes);

}  // namespace paceline::tables
