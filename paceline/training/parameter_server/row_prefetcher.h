#pragma once

// Pulls the rows of coming batches on a thread of its own ("paceline-rows") while the caller
// computes. A batch that was pulled early keeps the guarantee of its table:
//
// - Rows that this worker has pushed since the pull are pulled again, so a worker sees its pushes.
// - A table with a clock is pulled only after the tick that ends the clock before the batch's use.
//
// Thread safety: one thread calls the methods.

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <mutex>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include <ATen/core/Tensor.h>

#include "paceline/engine/tables/row_batch.h"
#include "paceline/engine/tables/rows.h"

namespace paceline::tables {

class RowPrefetcher {
 public:
  // Requires: `rows` outlives this object.
  explicit RowPrefetcher(Rows& rows);
  // Waits for a pull that is under way, at most for the table's timeout.
  ~RowPrefetcher();
  RowPrefetcher(const RowPrefetcher&) = delete;
  RowPrefetcher& operator=(const RowPrefetcher&) = delete;

  // Queues a pull of these rows. With a clock it begins at the next tick.
  void start(std::vector<Id> ids);
  // Returns the rows [ids, width] if the oldest queued batch has these ids, after a wait for its
  // pull. Otherwise drops all queued batches and returns nullopt. Throws the error of the pull.
  std::optional<at::Tensor> take(std::span<const Id> ids);
  // Tells that this worker is about to push, or has pushed, these rows.
  void note_push(std::span<const Id> ids);
  // Tells that a clock of this worker has ended.
  void note_tick();

 private:
  enum class State { kQueued, kPulling, kPulled };
  struct Batch {
    std::vector<Id> ids;
    State state = State::kQueued;
    bool may_begin = false;
    bool is_stale = false;  // the clock ended during the pull
    at::Tensor values;
    std::exception_ptr error;
    std::vector<std::vector<Id>> pushes;  // since the pull began
  };

  void run(std::stop_token stop);
  Batch* next_to_pull();
  void refresh(Batch& batch);

  Rows& rows_;
  const bool has_clock_;
  std::mutex mutex_;  // guards batches_, except for the values of a batch in kPulling
  std::condition_variable changed_;
  std::deque<Batch> batches_;
  std::optional<std::jthread> thread_;  // from the first batch on; the last member: joined first
};

}  // namespace paceline::tables
