#include "paceline/engine/tables/staged_pushes.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "paceline/engine/core/bytes.h"
#include "paceline/engine/core/check.h"
#include "paceline/engine/tables/row_store.h"
#include "paceline/engine/tables/table_workers.h"

namespace paceline::tables {

namespace {

// The workers that have pushed in `clock` and ended it, a bit for each slot.
std::uint64_t stages_of(const TableMemory& memory, std::uint64_t clock) {
  std::uint64_t workers = 0;
  for (std::uint32_t i = 0; i < kMaxWorkers; ++i) {
    const WorkerSlot& slot = memory.worker(i);
    if (is_present(slot) && slot.staged_clock == clock + 1 && slot.clock > clock)
      workers |= std::uint64_t{1} << i;
  }
  return workers;
}

std::vector<std::uint32_t> in_order_of_names(const TableMemory& memory, std::uint64_t workers) {
  std::vector<std::uint32_t> order;
  for (std::uint32_t i = 0; i < kMaxWorkers; ++i)
    if (workers >> i & 1) order.push_back(i);
  std::sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) {
    return printable(memory.worker(a).name) < printable(memory.worker(b).name);
  });
  return order;
}

}  // namespace

bool is_synchronous(const TableMemory& memory) {
  return consistency_of(memory.settings()).kind() == Consistency::Kind::kSynchronous;
}

std::uint64_t num_staged(const TableAccess& access) {
  const WorkerSlot& slot = access.self();
  return slot.staged_clock == slot.clock + 1 ? slot.staged_rows.load() : 0;
}

void stage_push(const TableAccess& access, std::uint64_t before, const RowBatch& batch,
                std::span<const float> gradients) {
  const TableMemory& memory = *access.memory;
  const std::uint32_t width = memory.settings().width;
  const std::uint64_t after = before + batch.size();
  if (after > memory.layout().stage_rows) {
    fail(ErrorCode::kSystem, {.operation = access.operation},
         "worker {}: {}: table '{}': {} different rows in one clock are more than the {} that a "
         "worker of a synchronous table may push; call tick() more often",
         access.self_name(), access.operation, access.table, after, memory.layout().stage_rows);
  }
  Id* const ids = memory.staged_ids(access.index) + before;
  float* const values = memory.staged_gradients(access.index) + before * width;
  memory.allocate(memory.offset_of(ids), batch.size() * sizeof(Id));
  memory.allocate(memory.offset_of(values), batch.size() * width * sizeof(float));
  std::vector<float> sum;
  for (std::size_t i = 0; i < batch.size(); ++i) {
    ids[i] = batch.id(i);
    std::memcpy(values + i * width, batch.gradient(i, gradients, width, sum),
                width * sizeof(float));
  }
  WorkerSlot& slot = access.self();
  slot.staged_rows = after;
  slot.staged_clock = slot.clock + 1;
  access.require_open();  // a copy that was made before does not have these rows
}

void apply_stages(const TableAccess& access, std::uint64_t clock) {
  const TableMemory& memory = *access.memory;
  TableHeader& header = access.header();
  const LockGuard guard(access, header.applying);
  if (header.applied > clock) return;
  if (header.apply_clock <= clock) {
    Transaction begin(access);
    begin.set(header.apply_workers, stages_of(memory, clock));
    begin.set(header.apply_position, 0);
    begin.set(header.apply_clock, clock + 1);
    begin.commit();
  }
  std::vector<Id> ids;
  std::vector<float> gradients;
  const std::uint32_t width = memory.settings().width;
  for (const std::uint32_t worker : in_order_of_names(memory, header.apply_workers)) {
    const std::uint64_t rows = memory.worker(worker).staged_rows;
    const Id* const staged = memory.staged_ids(worker);
    const float* const values = memory.staged_gradients(worker);
    ids.insert(ids.end(), staged, staged + rows);
    gradients.insert(gradients.end(), values, values + rows * width);
  }
  RowBatch batch;
  batch.assign(ids);
  std::vector<float> sum;
  for (std::size_t i = header.apply_position; i < batch.size(); ++i) {
    push_row(access, batch.id(i), batch.gradient(i, gradients, width, sum),
             [&](Transaction& transaction) { transaction.set(header.apply_position, i + 1); });
  }
  Transaction end(access);
  end.set(header.applied, clock + 1);
  end.commit();
}

}  // namespace paceline::tables
