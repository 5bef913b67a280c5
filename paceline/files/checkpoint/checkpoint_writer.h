#pragma once

// Writing a checkpoint while the training goes on: the memory that it is copied into, and the
// thread that writes it.

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

// The buffer that a save copies its bytes into. It is kept for the next save. Thread safety: none.
class StagingMemory {
 public:
  // Makes it at least so large, with its pages present; its former content is lost. Error(kSystem)
  // when there is no memory.
  std::byte* reserve(std::size_t bytes);
  std::byte* data() const { return memory_.get(); }

 private:
  struct Free {
    void operator()(std::byte* bytes) const { std::free(bytes); }
  };
  std::unique_ptr<std::byte, Free> memory_;
  std::size_t capacity_ = 0;
};

// Writes checkpoints one after another on a background thread. The thread runs niced, so that it
// does not slow training; while someone waits for it, it gets the waiter's priority back, if the
// system permits. An error is logged at once and given later: a checkpoint that cannot be written
// costs nothing else.
//
// Thread safety: none; one thread at a time.
class CheckpointWriter {
 public:
  // `timeline` gets a span for each write; may be null. `patience`: with the disk, at the end.
  explicit CheckpointWriter(std::shared_ptr<Timeline> timeline = nullptr,
                            std::chrono::milliseconds patience = std::chrono::hours(1));
  // Waits for the save under way. When the disk takes longer than `patience`, the process ends with
  // exit code 1 and a line that says so, because its thread cannot be ended and uses the memory.
  ~CheckpointWriter();
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;

  bool is_busy() const;
  // Waits until what was started before has ended: the memory that it reads may change then. False
  // when it has not at the deadline. `step` is what waits, for a warning; nothing: no save does.
  bool take_turn(std::optional<std::int64_t> step, Deadline deadline);
  // The save of `step` does not start, because of this error, which is logged and given later.
  void refuse(std::int64_t step, const Error& error);
  // Waits as take_turn(), for `patience`, and returns while `write` runs; an error is what it
  // throws. Error(kSystem) when no thread can be started, Error(kTimeout) after `patience`.
  void start(std::int64_t step, std::function<void()> write);

  // The first error since it was last asked; does not wait.
  std::optional<Error> take_error();
  // Waits as take_turn(), then as take_error(); Error(kTimeout) after `patience`.
  std::optional<Error> finish();

 private:
  bool wait_until_idle(std::unique_lock<std::mutex>& lock, Deadline deadline);
  Error overdue() const;
  void begin_below();
  void end(std::int64_t step, Timeline::Clock::time_point begin, const std::optional<Error>& error);
  void keep(std::int64_t step, const Error& error);

  const std::shared_ptr<Timeline> timeline_;  // owners: the groups of this rank, and this
  const std::chrono::milliseconds patience_;
  mutable std::mutex mutex_;  // guards everything below
  std::condition_variable changed_;
  std::optional<std::int64_t> step_;  // of the save under way
  pid_t writer_ = 0;                  // its thread, once it has a lower priority
  bool is_awaited_ = false;
  bool has_given_up_ = false;  // finish() has waited long enough for all
  std::optional<Error> error_;
  std::jthread thread_;  // of the last save
};

}  // namespace paceline
