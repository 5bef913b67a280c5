#pragma once

// Synchronous tables: a push is kept in its worker's stage until all workers have ended the clock.
// Then one of them applies all stages of the clock: each different id takes one step with the sum
// of its gradients, added in the order of the workers' names and of each one's pushes. If that
// worker dies, the next one continues at the same row.
//
// Thread safety: as TableAccess.

#include <cstdint>
#include <span>

#include "paceline/engine/tables/row_batch.h"
#include "paceline/engine/tables/table_access.h"

namespace paceline::tables {

bool is_synchronous(const TableMemory& memory);

// How many rows the stage of this worker has for its clock.
std::uint64_t num_staged(const TableAccess& access);
// Writes the rows of a batch behind the first `before` rows of the stage. Throws Error(kSystem) if
// they do not fit, and TableMoved: then stage them again in the next memory.
void stage_push(const TableAccess& access, std::uint64_t before, const RowBatch& batch,
                std::span<const float> gradients);

// Applies the stages of `clock`, unless another worker has done it. Requires: the clocks of all
// present workers are larger.
void apply_stages(const TableAccess& access, std::uint64_t clock);

}  // namespace paceline::tables
