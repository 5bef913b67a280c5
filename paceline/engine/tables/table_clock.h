#pragma once

// The clocks of the workers of a table. A worker's clock counts its ticks.
//
// Thread safety: as TableAccess.

#include <cstdint>

#include "paceline/engine/tables/table_access.h"

namespace paceline::tables {

// Sets the worker's clock. Throws TableMoved if the memory was closed: set it again in the next
// one.
void set_clock(const TableAccess& access, std::uint64_t clock);

// Waits until the clocks of all present workers have reached `clock`. Workers that are dead or
// given up meanwhile are evicted. Throws TableMoved, MustTakeOver, and Error(kTimeout), which names
// the slowest worker.
void wait_for_clocks(const TableAccess& access, std::uint64_t clock);

// How many clocks this worker is ahead of the slowest: the clocks whose pushes a pull may miss.
std::uint64_t staleness(const TableAccess& access);

}  // namespace paceline::tables
