#pragma once

// Rows in the shared memory of this host.

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "paceline/engine/core/system/host.h"
#include "paceline/engine/tables/host/cutting.h"
#include "paceline/engine/tables/host/row_store.h"
#include "paceline/engine/tables/host/table_access.h"
#include "paceline/engine/tables/host/table_clock.h"
#include "paceline/engine/tables/row_batch.h"
#include "paceline/engine/tables/rows.h"

namespace paceline::tables {

struct SharedRowsOptions {
  std::string table, worker;                   // their names
  std::optional<std::uint64_t> session{};      // of an earlier worker; default: a new one
  std::optional<std::uint64_t> new_session{};  // the number of a new session; default: random
  std::chrono::milliseconds timeout = std::chrono::seconds(60);
  TornReads torn_reads = TornReads::kRefused;
  IsLost is_lost{};
  // Returns the memory that replaces `closed`. `successor` is this worker's copy of the table; the
  // function returns it, or another worker's copy if that was published first. If `successor` is
  // null, the function waits briefly for another worker's copy and returns null if none appears.
  std::function<MemoryPointer(const TableMemory& closed, MemoryPointer successor)> next_memory{};
};

class SharedRows final : public Rows {
 public:
  // Joins the table, in new memory if it moves meanwhile. Throws the errors of join_table() and
  // take_over(), and Error(kInvalid) if the table has been replaced meanwhile by one with other
  // options.
  SharedRows(MemoryPointer memory, SharedRowsOptions options);
  ~SharedRows() override;

  using Rows::push;
  void pull(std::span<const Id> ids, std::span<float> values) override;
  void push(std::span<const Id> ids, std::span<const float> gradients,
            std::optional<std::uint64_t> number) override;
  void push_written(std::span<const Id> ids, const WriteGradient& write) override;
  void tick() override;
  const std::string& name() const override { return options_.table; }
  std::uint32_t width() const override { return width_; }
  Consistency consistency() const override { return consistency_; }
  double lr() const override;
  void set_lr(double lr) override;
  std::uint64_t session() const override;
  std::uint64_t sequence() const override;
  Rows::Stats stats() const override;
  TableCut cut() override;
  void restore(const TableCut& cut) override { restore_some(cut, nullptr); }
  // Restores only the ids that `takes` accepts.
  void restore_some(const TableCut& cut, const TakesId& takes);
  void leave() override;

  // Calls `use` with access to the memory, and again if the table has moved.
  void with_access(const char* operation, const std::function<void(TableAccess&)>& use) const;

 private:
  bool is_synchronous() const { return consistency_.kind() == Consistency::Kind::kSynchronous; }
  TableAccess access(const char* operation) const;
  void move_on(const TableAccess& access, bool must_copy) const;
  void check_tick(const char* operation) const;
  void stage(const StageWriter& write);
  void push_batch(const TableAccess& access, std::span<const float> gradients,
                  std::uint64_t sequence);

  const SharedRowsOptions options_;
  const OwnerProcess process_;
  const std::uint32_t width_;
  const Consistency consistency_;
  std::uint32_t index_ = 0, token_ = 0;

  mutable std::mutex moving_;  // guards memory_
  mutable MemoryPointer memory_;
  std::atomic<bool> has_left_ = false;
  std::atomic<bool> tick_failed_ = false;  // an exception ended the last tick() after it had begun
  std::mutex pushing_;            // one push, tick or leave at a time; guards the members below
  std::uint64_t next_clock_ = 0;  // the clock after the current tick
  // The number of rows that pushes of this clock to a synchronous table have staged. A push that
  // failed may have staged more rows in the memory; the next push overwrites those rows.
  std::uint64_t num_staged_ = 0;
  // The last number given to a push to a synchronous table. Pushes of other objects are not known.
  std::uint64_t last_staged_ = 0;
  RowBatch batch_;
  std::vector<float> sum_;
};

}  // namespace paceline::tables
