#pragma once

// A table of rows that several workers train together: a parameter server for embeddings. On one
// host the rows lie in memory that all workers map: each worker reads and updates them in place,
// and no server process runs. docs/tables.md has the guarantees.
//
//   auto rows = tables.open_rows("item", {.width = 64, .optimizer = tables::RowAdagrad{0.02}});
//   rows->pull(ids, values);       // 64 floats for each id
//   rows->push(ids, gradients);    // each distinct id takes one step with the sum of its gradients
//   rows->tick();                  // advances this worker's clock

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "paceline/engine/core/error.h"
#include "paceline/engine/tables/row_options.h"
#include "paceline/engine/tables/table_cut.h"

namespace paceline::tables {

// Thread safety: pull() and the accessors may be called from any thread; push(), tick() and leave()
// run one at a time. A forked child must not use its parent's rows.
//
// Every method that waits throws Error(kTimeout), which names the worker that it waits for, after
// TableOptions::timeout. All but the accessors throw Error(kPeerLost) if this worker was evicted.
class Rows {
 public:
  // A worker's view of a table. The counts are this worker's own, unless noted otherwise.
  struct Stats {
    std::uint64_t epoch = 0;  // of the memory, +1 at each take-over; with servers, of the slot map
    std::uint64_t rows = 0;   // in the whole table
    std::uint64_t clock = 0;  // of this worker
    std::uint64_t pulls = 0;  // calls of pull()
    std::uint64_t pulled_ids = 0, pushed_ids = 0, pushed_rows = 0;
    std::uint64_t duplicate_pushes = 0;   // repeated pushes that had been applied before
    std::uint64_t dropped_gradients = 0;  // of ids that are not admitted yet
    std::uint64_t torn_reads = 0;         // only with TableOptions::allow_torn_reads
    std::uint64_t expired_rows = 0;       // removed by this worker
    // How many clocks the slowest worker was behind this one at its pulls: the clocks whose pushes
    // a pull may have missed.
    std::uint64_t largest_staleness = 0;
    double mean_staleness = 0;
    std::uint64_t evicted_workers = 0;   // workers that died or were given up, in the whole table
    std::uint64_t repaired_updates = 0;  // unfinished changes of lost workers that were completed
  };

  virtual ~Rows() = default;  // leaves the table
  Rows(const Rows&) = delete;
  Rows& operator=(const Rows&) = delete;

  // Copies the rows of `ids` to `values`, `width` floats for each, in the order of the ids. For an
  // id without a row it copies the initial values, and makes no row. Ids may repeat. Throws
  // Error(kInvalid) if the size of `values` is not the number of ids times the width.
  virtual void pull(std::span<const Id> ids, std::span<float> values) = 0;

  // Takes one step of the optimizer on the row of each distinct id, with the sum of the gradients
  // that the batch has for it, added in the order of the batch. The push is applied exactly once
  // (docs/tables.md). Before any row changes, throws Error(kInvalid) for a wrong size or for a
  // gradient that is not finite, and names its row. Throws Error(kSystem) if the table is full or
  // the system has no memory; the same push then continues where it stopped when it is repeated.
  //
  // `sequence` is the number of the push in its session, for a worker that was started again and
  // does not know whether its last push arrived. A push with a number that has been applied changes
  // nothing; a push that was applied in part continues. Default: the next number. A synchronous
  // table knows only the numbers that were pushed through this object.
  virtual void push(std::span<const Id> ids, std::span<const float> gradients,
                    std::optional<std::uint64_t> sequence) = 0;
  void push(std::span<const Id> ids, std::span<const float> gradients);

  // As push(), for gradients that are computed during the push: `write` writes the gradient of
  // ids[place]. In a synchronous table of this host, `write` writes to the memory from which the
  // other workers read, so nothing is copied. Requires: the ids are distinct.
  using WriteGradient = std::function<void(std::size_t place, std::span<float> gradient)>;
  virtual void push_written(std::span<const Id> ids, const WriteGradient& write);

  // Advances this worker's clock by 1. The pushes since the last tick belong to the clock before.
  // Waits for slower workers if the consistency of the table demands that. After an exception, call
  // tick() again: it continues to wait.
  virtual void tick() = 0;

  virtual const std::string& name() const = 0;
  virtual std::uint32_t width() const = 0;
  virtual Consistency consistency() const = 0;
  // The learning rate of all workers. set_lr() sets it for all later steps of rows, and throws
  // Error(kInvalid) for a rate that is not finite.
  virtual double lr() const = 0;
  virtual void set_lr(double lr) = 0;

  // The session of this worker's pushes, and the number of the last push that began.
  virtual std::uint64_t session() const = 0;
  virtual std::uint64_t sequence() const = 0;
  virtual Stats stats() const = 0;

  // Copies the whole table as it is at one moment (table_cut.h). A push waits only until the rows
  // that it needs have been copied; pulls do not wait. Pushes that a synchronous table has staged
  // are not in the cut. If the table is on servers, each of them copies its part at its own moment.
  virtual TableCut cut() = 0;
  // Like cut(), for reading: the rows as they were at that moment, whatever is pushed later.
  TableSnapshot snapshot();
  // Fills an empty table with a cut. Throws Error(kInvalid) if the table is not empty or does not
  // fit, Error(kSystem) if it is too small. After an error no row has changed, except that some
  // servers of a table on servers may have restored their parts.
  virtual void restore(const TableCut& cut) = 0;

  // Leaves the table: the other workers do not wait for this one any more. Later calls throw
  // Error(kInvalid).
  virtual void leave() = 0;

 protected:
  Rows() = default;

 private:
  std::vector<float> written_;
};

}  // namespace paceline::tables
