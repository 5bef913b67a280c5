#pragma once

// Moving a table to new memory, because a frozen worker stopped in the middle of writing a row: it
// goes on writing when it thaws, and nothing can stop it. The old memory is closed first, so that
// all other workers stop; then it is copied, and the frozen worker's change, which is committed, is
// completed in the copy. No worker reads what the frozen worker writes after that.
//
// Several workers may take a table over at the same time: they only read the old memory, and one of
// the copies is chosen (SharedRowsOptions::next_memory).

#include "paceline/engine/tables/table_access.h"

namespace paceline::tables {

// Closes the memory and returns a copy of it, with the next epoch, without the workers that are
// dead or given up. Throws Error(kSystem) if there is no memory for a copy, and Error(kTimeout) if
// a worker that lives does not end its change.
MemoryPointer take_over(const TableAccess& access);

}  // namespace paceline::tables
