#include "paceline/engine/tables/host/table_clock.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <optional>
#include <vector>

#include "paceline/engine/collectives/kernels/reduce.h"
#include "paceline/engine/core/awake_clock.h"
#include "paceline/engine/core/bytes.h"
#include "paceline/engine/core/check.h"
#include "paceline/engine/core/system/thread.h"
#include "paceline/engine/tables/host/row_store.h"
#include "paceline/engine/tables/host/table_workers.h"

namespace paceline::tables {

namespace {

using namespace std::chrono_literals;

constexpr std::chrono::nanoseconds kRound = 10ms;
constexpr int kRoundsBeforeCheck = 5;

// Evicts the dead and frozen workers whose clocks are below `clock`. Returns the slowest live
// worker with a clock below `clock`, or this worker if there is none.
std::uint32_t evict_lost(const TableAccess& access, std::uint64_t clock) {
  const TableMemory& memory = *access.memory;
  std::uint32_t slowest = access.index;
  for (std::uint32_t i = 0; i < kMaxWorkers; ++i) {
    const WorkerSlot& slot = memory.worker(i);
    if (i == access.index || !is_present(slot) || slot.clock.load() >= clock) continue;
    const std::uint32_t token = token_of(i, slot.generation.load());
    const WorkerState state = state_of(memory, token, access.is_lost);
    if (state == WorkerState::kDead || state == WorkerState::kFrozen) {
      evict(access, i, state);
    } else if (slowest == access.index || slot.clock < memory.worker(slowest).clock) {
      slowest = i;
    }
  }
  return slowest;
}

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

// The gradients of a clock. The gradients of a row are added for each worker first, in the order of
// its pushes, and then over the workers in the order of their names, by the reduction tree of the
// collectives (collectives/kernels/reduce.h). So the sum has the bits of an all-reduce.
class ClockGradients {
 public:
  ClockGradients(const TableMemory& memory, std::uint64_t workers)
      : width_(memory.settings().width) {
    const std::vector<std::uint32_t> order = in_order_of_names(memory, workers);
    for (const std::uint32_t worker : order) {
      const std::uint64_t rows = memory.worker(worker).staged_rows;
      const Id* const staged = memory.staged_ids(worker);
      ids_.insert(ids_.end(), staged, staged + rows);
      for (std::uint64_t i = 0; i < rows; ++i)
        places_.push_back({worker, memory.staged_gradients(worker) + i * width_});
    }
    batch_.assign(ids_);
    sums_.resize((1 + order.size()) * width_);
  }

  const RowBatch& batch() const { return batch_; }
  // The sum for the i-th row, valid until the next call.
  const float* sum_of(std::size_t i) {
    std::optional<std::uint32_t> worker;
    sources_.clear();
    batch_.for_places(i, [&](std::uint32_t place) {
      const auto& [pusher, gradient] = places_[place];
      if (pusher == worker) {
        add_to_last(gradient);
      } else {
        sources_.push_back(reinterpret_cast<const std::byte*>(gradient));
        worker = pusher;
      }
    });
    if (sources_.size() == 1) return reinterpret_cast<const float*>(sources_[0]);
    reduce(sources_, reinterpret_cast<std::byte*>(sums_.data()), width_, Dtype::kFloat32,
           ReduceOp::kSum);
    return sums_.data();
  }

 private:
  struct Place {
    std::uint32_t worker;
    const float* gradient;
  };

  // Adds the gradient of a further push by the worker whose gradient was added last.
  void add_to_last(const float* gradient) {
    float* const sum = sums_.data() + sources_.size() * width_;
    const std::byte*& last = sources_.back();
    if (last != reinterpret_cast<const std::byte*>(sum))
      std::memcpy(sum, last, width_ * sizeof(float));
    last = reinterpret_cast<const std::byte*>(sum);
    for (std::uint32_t j = 0; j < width_; ++j) sum[j] += gradient[j];
  }

  const std::uint32_t width_;
  std::vector<Id> ids_;        // of all workers
  std::vector<Place> places_;  // where the gradient of each id is
  RowBatch batch_;
  std::vector<float> sums_;                // the sum of a row, then each worker's own sum for it
  std::vector<const std::byte*> sources_;  // the gradient of a row from each worker
};

// Applies one part, from the row at which its last worker stopped. Makes `gradients` only while
// this worker owns a part that is not complete, because the stages of the clock do not change then.
void apply_part(const TableAccess& access, std::uint64_t clock, std::uint32_t number,
                std::optional<ClockGradients>& gradients) {
  const TableHeader& header = access.header();
  ApplyPart& part = access.header().parts[number];
  const LockGuard guard(access, part.lock);
  const bool has_begun = part.clock == clock + 1;
  if (header.applied > clock || (has_begun && part.rows == ApplyPart::kComplete)) return;
  if (!gradients) gradients.emplace(*access.memory, header.apply_workers);
  const auto set_rows = [&](Transaction& transaction, std::uint64_t rows) {
    transaction.set(part.clock, clock + 1);
    transaction.set(part.rows, rows);
  };
  const RowBatch& batch = gradients->batch();
  const std::size_t begin = batch.size() * number / kApplyParts;
  const std::size_t end = batch.size() * (number + 1) / kApplyParts;
  for (std::size_t i = begin + (has_begun ? part.rows.load() : 0); i < end; ++i) {
    push_row(access, batch.id(i), gradients->sum_of(i),
             [&](Transaction& transaction) { set_rows(transaction, i + 1 - begin); });
  }
  Transaction last(access);
  set_rows(last, ApplyPart::kComplete);
  last.commit();
}

}  // namespace

void set_clock(const TableAccess& access, std::uint64_t clock) {
  access.self().clock = clock;
  LongWord& now = access.header().now;
  for (std::uint64_t seen = now.load(); seen < clock && !now.compare_exchange_weak(seen, clock);) {
  }
  access.require_open();  // a copy made before the change does not have this clock
  announce(*access.memory);
}

void wait_for_clocks(const TableAccess& access, std::uint64_t clock) {
  const TableMemory& memory = *access.memory;
  Deadline deadline = access.deadline;
  Vigil vigil;
  for (int sleeps = 1;; ++sleeps) {
    access.require_open();
    const std::uint32_t seen = access.header().changed.load();
    if (smallest_clock(memory).value_or(clock) >= clock) return;
    if (sleeps % kRoundsBeforeCheck == 0) {
      const std::uint32_t slowest = evict_lost(access, clock);
      if (vigil.sees_passed(deadline) && slowest != access.index) {
        fail(ErrorCode::kTimeout,
             {.operation = access.operation, .deadline = access.deadline.timeout()},
             "worker {}: {}: table '{}': worker {} is at clock {}, and this worker, at clock {}, "
             "may not get further ahead; the slow worker is alive: raise the timeout, or the "
             "bound of the consistency",
             access.self_name(), access.operation, access.table,
             name_of(memory, token_of(slowest, memory.worker(slowest).generation)),
             memory.worker(slowest).clock.load(), access.self().clock.load());
      }
    }
    futex_wait(access.header().changed, seen, kRound);
  }
}

std::uint64_t staleness(const TableAccess& access) {
  const std::uint64_t own = access.self().clock.load();
  const std::uint64_t smallest = smallest_clock(*access.memory).value_or(own);
  return own > smallest ? own - smallest : 0;
}

void stage_push(const TableAccess& access, std::uint64_t before, const RowBatch& batch,
                const StageWriter& write) {
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
  for (std::size_t i = 0; i < batch.size(); ++i) {
    ids[i] = batch.id(i);
    write(i, values + i * width);
  }
  WorkerSlot& slot = access.self();
  slot.staged_rows = after;
  slot.staged_clock = slot.clock + 1;
  access.require_open();  // a copy made before the staging does not have these rows
}

bool is_applying(const TableHeader& header) { return header.apply_clock > header.applied; }

void apply_stages(const TableAccess& access, std::uint64_t clock) {
  TableHeader& header = access.header();
  {
    const LockGuard guard(access, header.applying);
    if (header.applied > clock) return;
    if (header.apply_clock <= clock) {
      header.apply_claims = 0;
      Transaction begin(access);
      begin.set(header.apply_workers, stages_of(*access.memory, clock));
      begin.set(header.apply_clock, clock + 1);
      begin.commit();
    }
  }
  std::optional<ClockGradients> gradients;
  for (std::uint32_t part; (part = header.apply_claims.fetch_add(1)) < kApplyParts;)
    apply_part(access, clock, part, gradients);
  // Another worker may still be applying a part, or may have died before the part was complete.
  for (std::uint32_t part = 0; part < kApplyParts; ++part)
    apply_part(access, clock, part, gradients);
  const LockGuard guard(access, header.applying);
  if (header.applied > clock) return;
  Transaction end(access);
  end.set(header.applied, clock + 1);
  end.commit();
}

}  // namespace paceline::tables
