#pragma once

// The clocks of the workers of a table, and the pushes that wait for the end of a clock. A worker's
// clock counts its ticks.
//
// In a synchronous table a push is kept in its worker's stage until all workers have ended the
// clock. Then each worker applies some parts of the rows (ApplyPart), until all stages of the clock
// are applied: each distinct id takes one step with the sum of its gradients, added in the order of
// the workers' names and of each worker's pushes. If a worker dies, another one continues at the
// same row.
//
// Thread safety: as TableAccess.

#include <cstddef>
#include <cstdint>
#include <functional>

#include "paceline/engine/tables/host/table_access.h"
#include "paceline/engine/tables/row_batch.h"

namespace paceline::tables {

// Sets the worker's clock. Throws TableMoved if the memory was closed: set the clock again in the
// next memory.
void set_clock(const TableAccess& access, std::uint64_t clock);

// Waits until the clocks of all present workers have reached `clock`. Workers that die or
// freeze meanwhile are evicted. Throws the errors of require_open(), MustTakeOver, and
// Error(kTimeout), which names the slowest worker.
void wait_for_clocks(const TableAccess& access, std::uint64_t clock);

// How many clocks this worker is ahead of the slowest: the clocks whose pushes a pull may miss.
std::uint64_t staleness(const TableAccess& access);

// Writes the gradient of the i-th distinct id of a batch.
using StageWriter = std::function<void(std::size_t i, float* gradient)>;
// Stages a batch behind the first `before` rows of the stage; `write` writes its gradients. Throws
// Error(kSystem) if the rows do not fit. After TableMoved, stage them again in the next memory.
void stage_push(const TableAccess& access, std::uint64_t before, const RowBatch& batch,
                const StageWriter& write);

// Whether workers have begun to apply the stages of a clock and have not applied all of them.
bool is_applying(const TableHeader& header);

// Applies the stages of `clock` together with other workers; returns when all are applied.
// Requires: the clocks of all present workers are larger than `clock`.
void apply_stages(const TableAccess& access, std::uint64_t clock);

}  // namespace paceline::tables
