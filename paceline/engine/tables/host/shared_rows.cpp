#include "paceline/engine/tables/host/shared_rows.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "paceline/engine/core/check.h"
#include "paceline/engine/tables/host/cutting.h"
#include "paceline/engine/tables/host/table_workers.h"
#include "paceline/engine/tables/row_batch.h"

namespace paceline::tables {

namespace {

constexpr std::uint32_t kSweptSlots = 16;  // slots in which each tick removes expired rows

void count(LongWord& counter, std::uint64_t more) {
  counter.fetch_add(more, std::memory_order_relaxed);
}

void record_staleness(const TableAccess& access) {
  WorkerCounts& counts = access.self().counts;
  const std::uint64_t observed = staleness(access);
  count(counts.pulls, 1);
  count(counts.staleness_sum, observed);
  for (std::uint64_t seen = counts.largest_staleness;
       seen < observed && !counts.largest_staleness.compare_exchange_weak(seen, observed);) {
  }
}

}  // namespace

SharedRows::SharedRows(MemoryPointer memory, SharedRowsOptions options)
    : options_(std::move(options)),
      width_(memory->settings().width),
      consistency_(consistency_of(memory->settings())),
      memory_(std::move(memory)) {
  const Settings settings = memory_->settings();
  with_access("open_rows", [&](TableAccess& own) {
    const std::string difference = settings.difference(own.memory->settings());
    check(difference.empty(), "open_rows: table '{}' is open with other options: {}",
          options_.table, difference);
    join_table(own, options_.worker, {options_.session, options_.new_session});
    index_ = own.index;
    token_ = own.token;
  });
}

SharedRows::~SharedRows() {
  if (!process_.is_this()) return;
  try {
    SharedRows::leave();
  } catch (...) {
    // The other workers notice that this worker has left, at the latest when its process ends.
  }
}

TableAccess SharedRows::access(const char* operation) const {
  const std::lock_guard lock(moving_);
  return {.memory = memory_,
          .index = index_,
          .token = token_,
          .table = options_.table,
          .is_lost = options_.is_lost,
          .operation = operation,
          .deadline = Deadline::after(options_.timeout)};
}

void SharedRows::with_access(const char* operation,
                             const std::function<void(TableAccess&)>& use) const {
  check(process_.is_this(),
        "{}: table '{}' belongs to process {}; a forked child must open it itself", operation,
        options_.table, process_.pid());
  check(!has_left_, "worker {}: {}: this worker has left table '{}'", options_.worker, operation,
        options_.table);
  for (;;) {
    TableAccess own = access(operation);
    bool must_copy = false;
    try {
      return use(own);
    } catch (const TableMoved&) {
    } catch (const MustTakeOver&) {
      must_copy = true;
    }
    move_on(own, must_copy);
  }
}

void SharedRows::move_on(const TableAccess& access, bool must_copy) const {
  const std::lock_guard lock(moving_);
  if (memory_ != access.memory) return;  // another thread was faster
  check(options_.next_memory != nullptr, "worker {}: table '{}' is closed", options_.worker,
        options_.table);
  MemoryPointer next;
  if (!must_copy) next = options_.next_memory(*memory_, nullptr);
  // The worker that closed the memory may have died before its copy was complete.
  if (!next) next = options_.next_memory(*memory_, take_over(access));
  memory_ = std::move(next);
  WorkerSlot& slot = memory_->worker(index_);
  if (is_present(slot) && token_of(index_, slot.generation) == token_)
    slot.descriptor = static_cast<std::uint32_t>(memory_->descriptor());
}

void SharedRows::check_tick(const char* operation) const {
  check(!tick_failed_,
        "worker {}: {}: table '{}': the last tick() did not end; call it again first",
        options_.worker, operation, options_.table);
}

void SharedRows::pull(std::span<const Id> ids, std::span<float> values) {
  check_tick("pull");
  check_size({options_.worker, "pull", options_.table, width_}, ids.size(), values.size());
  with_access("pull", [&](const TableAccess& access) {
    access.require_open();
    record_staleness(access);
    RowPrefetch prefetch(*access.memory, 0, ids.size(),
                         [&](std::size_t place) { return ids[place]; });
    for (std::size_t i = 0; i < ids.size(); ++i) {
      prefetch.at(i);
      read_row(access, ids[i], values.data() + i * width_, options_.torn_reads);
    }
    access.require_open();  // rows that were read after a take-over may be outdated
    count(access.self().counts.pulled_ids, ids.size());
  });
}

void SharedRows::push(std::span<const Id> ids, std::span<const float> gradients,
                      std::optional<std::uint64_t> number) {
  check_tick("push");
  check(number != 0, "worker {}: push: table '{}': pushes are numbered from 1", options_.worker,
        options_.table);
  const BatchUse use{options_.worker, "push", options_.table, width_};
  check_size(use, ids.size(), gradients.size());
  check_finite(use, ids, gradients);
  const std::lock_guard lock(pushing_);
  batch_.assign(ids);
  if (is_synchronous()) {
    if (number && *number <= last_staged_) {
      return with_access("push", [](const TableAccess& access) {
        count(access.self().counts.duplicate_pushes, 1);
      });
    }
    stage([&](std::size_t i, float* out) {
      std::copy_n(batch_.gradient(i, gradients, width_, sum_), width_, out);
    });
    last_staged_ = number.value_or(last_staged_);
    return;
  }
  std::optional<std::uint64_t> sequence = number;
  with_access("push", [&](const TableAccess& access) {
    access.require_open();
    if (ids.empty()) return;
    if (!sequence) {
      // A push that stopped in the middle continues if it is repeated.
      const SessionRecord& session = access.memory->session(access.self().session);
      const bool continues = session.position < session.size && session.digest == batch_.digest();
      sequence = session.sequence + (continues ? 0 : 1);
    }
    push_batch(access, gradients, *sequence);
    count(access.self().counts.pushed_ids, ids.size());
  });
}

void SharedRows::push_written(std::span<const Id> ids, const WriteGradient& write) {
  if (!is_synchronous()) return Rows::push_written(ids, write);
  check_tick("push");
  const BatchUse use{options_.worker, "push", options_.table, width_};
  const std::lock_guard lock(pushing_);
  batch_.assign(ids);
  check(batch_.size() == ids.size(), "worker {}: push: table '{}': an id repeats", options_.worker,
        options_.table);
  stage([&](std::size_t i, float* out) {
    write(i, {out, width_});
    check_finite(use, ids[i], i, out);
  });
}

void SharedRows::stage(const StageWriter& write) {
  with_access("push", [&](const TableAccess& access) {
    access.require_open();
    stage_push(access, num_staged_, batch_, write);
    count(access.self().counts.pushed_ids, batch_.num_places());
  });
  num_staged_ += batch_.size();
}

void SharedRows::push_batch(const TableAccess& access, std::span<const float> gradients,
                            std::uint64_t sequence) {
  SessionRecord& session = access.memory->session(access.self().session);
  const bool has_begun = session.sequence == sequence;
  if (session.sequence > sequence || (has_begun && session.position == session.size))
    return count(access.self().counts.duplicate_pushes, 1);
  check(!has_begun || (session.digest == batch_.digest() && session.size == batch_.size()),
        "worker {}: push: table '{}': push {} of session {} was applied to {} of {} rows before, "
        "with other ids; no row was changed",
        options_.worker, options_.table, sequence, session.number.load(), session.position.load(),
        session.size.load());
  std::size_t i = has_begun ? session.position.load() : 0;
  const AlsoSet set_position = [&](Transaction& transaction) {
    transaction.set(session.position, static_cast<std::uint32_t>(i + 1));
    if (i > 0) return;
    transaction.set(session.size, static_cast<std::uint32_t>(batch_.size()));
    transaction.set(session.sequence, sequence);
    transaction.set(session.digest, batch_.digest());
  };
  RowPrefetch prefetch(*access.memory, i, batch_.size(),
                       [&](std::size_t place) { return batch_.id(place); });
  for (; i < batch_.size(); ++i) {
    prefetch.at(i);
    push_row(access, batch_.id(i), batch_.gradient(i, gradients, width_, sum_), set_position);
    count(access.self().counts.pushed_rows, 1);
  }
}

void SharedRows::tick() {
  const std::lock_guard lock(pushing_);
  bool has_begun = tick_failed_, has_swept = false;
  const auto end_clock = [&](const TableAccess& access) {
    access.require_open();
    if (!has_begun) next_clock_ = access.self().clock + 1;
    has_begun = true;
    num_staged_ = 0;
    const std::uint64_t clock = next_clock_;
    if (access.self().clock < clock) set_clock(access, clock);
    if (!has_swept) {
      has_swept = true;
      const auto first = static_cast<std::uint32_t>(clock * kSweptSlots % kNumSlots);
      remove_expired(access, first, first + kSweptSlots);
    }
    if (consistency_.kind() != Consistency::Kind::kAsynchronous && clock > consistency_.bound())
      wait_for_clocks(access, clock - consistency_.bound());
    if (is_synchronous()) apply_stages(access, clock - 1);
  };
  try {
    with_access("tick", end_clock);
    tick_failed_ = false;
  } catch (...) {
    tick_failed_ = has_begun;
    throw;
  }
}

double SharedRows::lr() const { return std::bit_cast<double>(access("lr").header().lr.load()); }

void SharedRows::set_lr(double lr) {
  check(std::isfinite(lr), "worker {}: table '{}': the learning rate {} is not finite",
        options_.worker, options_.table, lr);
  with_access("set_lr", [&](const TableAccess& access) {
    access.require_open();
    access.header().lr = std::bit_cast<std::uint64_t>(lr);
    access.require_open();  // a copy made before the change has the old rate
  });
}

std::uint64_t SharedRows::session() const {
  const TableAccess own = access("session");
  return own.memory->session(own.self().session).number;
}

std::uint64_t SharedRows::sequence() const {
  const TableAccess own = access("sequence");
  return own.memory->session(own.self().session).sequence;
}

Rows::Stats SharedRows::stats() const {
  const TableAccess own = access("stats");
  const TableHeader& header = own.header();
  const WorkerCounts& counts = own.self().counts;
  const std::uint64_t pulls = counts.pulls;
  return {
      .epoch = header.epoch,
      .rows = header.num_rows,
      .clock = own.self().clock,
      .pulls = pulls,
      .pulled_ids = counts.pulled_ids,
      .pushed_ids = counts.pushed_ids,
      .pushed_rows = counts.pushed_rows,
      .duplicate_pushes = counts.duplicate_pushes,
      .dropped_gradients = counts.dropped_gradients,
      .torn_reads = counts.torn_reads,
      .expired_rows = counts.expired_rows,
      .largest_staleness = counts.largest_staleness,
      .mean_staleness =
          pulls == 0 ? 0 : static_cast<double>(counts.staleness_sum) / static_cast<double>(pulls),
      .evicted_workers = header.num_evicted,
      .repaired_updates = header.num_repaired};
}

TableCut SharedRows::cut() {
  const std::lock_guard lock(pushing_);
  std::optional<TableCut> cut;
  with_access("cut", [&](const TableAccess& access) { cut = take_cut(access); });
  return std::move(*cut);
}

void SharedRows::restore_some(const TableCut& cut, const TakesId& takes) {
  const std::lock_guard lock(pushing_);
  with_access("restore", [&](const TableAccess& access) { restore_cut(access, cut, takes); });
}

void SharedRows::leave() {
  const std::lock_guard lock(pushing_);
  if (has_left_) return;
  with_access("leave", [](const TableAccess& access) { leave_table(access); });
  has_left_ = true;
}

}  // namespace paceline::tables
