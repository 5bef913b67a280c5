#pragma once

// Writing a checkpoint while the training continues: the memory into which a save copies the boxes,
// and the thread that writes them.

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

#include <sys/types.h>

#include "paceline/engine/core/deadline.h"
#include "paceline/engine/core/error.h"
#include "paceline/engine/telemetry/timeline.h"

namespace paceline {

// The buffer into which a save copies its bytes. It is kept for the next save. Thread safety: none.
class StagingMemory {
 public:
  // Enlarges the buffer to at least this size, with its pages present; the former content is lost.
  // Error(kSystem) when there is not enough memory.
  std::byte* reserve(std::size_t bytes);
  std::byte* data() const { return memory_.get(); }

 private:
  struct Free {
    void operator()(std::byte* bytes) const { std::free(bytes); }
  };
  std::unique_ptr<std::byte, Free> memory_;
  std::size_t capacity_ = 0;
};

// Writes checkpoints one after another on a background thread. The thread runs at a lower priority,
// so that it does not slow the training. While another thread waits for the save, the background
// thread has the priority of the waiting thread, if the system permits. An error is logged at once
// and returned later: a checkpoint that cannot be written does not stop the training.
//
// Thread safety: none; one thread at a time.
class CheckpointWriter {
 public:
  // `timeline` gets a span for each write; it may be null. `patience`: how long start(), finish()
  // and the destructor wait for the disk.
  explicit CheckpointWriter(std::shared_ptr<Timeline> timeline = nullptr,
                            std::chrono::milliseconds patience = std::chrono::hours(1));
  // Waits for the current save. When the disk takes longer than `patience`, the process logs this
  // and exits with code 1, because the thread cannot be ended and still uses the memory.
  ~CheckpointWriter();
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;

  bool is_busy() const;
  // Waits until the current save has ended; then the caller may change the memory that the save
  // has read. Returns false at the deadline. `step`: the step of the save that waits its turn; a
  // warning names it if such waits delay the training. nullopt: no save waits, so no warning.
  bool take_turn(std::optional<std::int64_t> step, Deadline deadline);
  // Records that the save of `step` was not started because of `error`. Logs the error now;
  // take_error() or finish() returns it.
  void refuse(std::int64_t step, const Error& error);
  // Waits until the current save has ended, for at most `patience`; then starts `write` and returns
  // while it runs. An exception of `write` is the error of the save. Error(kSystem) when no thread
  // can be started, Error(kTimeout) after `patience`.
  void start(std::int64_t step, std::function<void()> write);

  // The first error since the last take_error() or finish(); does not wait.
  std::optional<Error> take_error();
  // Waits until the current save has ended, then acts as take_error(). Returns Error(kTimeout)
  // after `patience`.
  std::optional<Error> finish();

 private:
  bool wait_until_idle(std::unique_lock<std::mutex>& lock, Deadline deadline);
  Error overdue() const;
  void lower_priority();
  void end(std::int64_t step, Timeline::Clock::time_point begin, const std::optional<Error>& error);
  void keep(std::int64_t step, const Error& error);

  const std::shared_ptr<Timeline> timeline_;  // shared by the groups of this rank and this object
  const std::chrono::milliseconds disk_timeout_;
  mutable std::mutex mutex_;  // guards everything below
  std::condition_variable changed_;
  std::optional<std::int64_t> step_;  // step of the current save
  pid_t writer_ = 0;                  // the save's thread once it has a lower priority
  bool is_awaited_ = false;
  bool has_given_up_ = false;  // finish() has timed out; the destructor does not wait again
  std::optional<Error> error_;
  std::chrono::steady_clock::time_point first_start_{};  // when the first save started
  std::chrono::duration<double> waited_{};  // how long saves have waited for previous saves
  bool has_warned_ = false;
  std::jthread thread_;  // of the last save
};

}  // namespace paceline
