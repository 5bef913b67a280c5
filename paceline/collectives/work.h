#pragma once

// An operation under way. The caller keeps the buffers alive until it has completed.
//
// Thread safety: every method may be called from any thread. Dropping a Work does not cancel the
// operation.

#include <chrono>
#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "paceline/core/error.h"
#include "paceline/telemetry/flight_recorder.h"

namespace paceline {

class Work {
 public:
  // `description` stands in the time-out's message.
  explicit Work(std::string description) : description_(std::move(description)) {}

  // Waits until the operation has ended and throws its error, if it had one. The operation's own
  // deadline ends the wait.
  void wait();
  // As wait(), but Error(kTimeout) after `timeout`; the operation goes on.
  void wait(std::chrono::milliseconds timeout);
  bool is_completed() const;
  // The rank that a completed receive took its message from; -1 otherwise.
  int source_rank() const;

  // For executors: ends the operation; null means success. Only the first call counts. Waiters get
  // copies of the error: threads must not share an exception object.
  void complete(std::exception_ptr error, int source_rank = -1);
  // The end is recorded, also when it has come already. At most once.
  void record_end(std::shared_ptr<FlightRecorder> recorder, FlightTicket ticket);

 private:
  void throw_error() const;  // requires mutex_; if there is one
  void record();             // requires mutex_, done_

  const std::string description_;
  mutable std::mutex mutex_;  // guards what is below
  std::condition_variable completed_;
  bool done_ = false;
  std::optional<Error> error_;
  int source_rank_ = -1;
  std::shared_ptr<FlightRecorder> recorder_;  // owners: the groups of this rank, and this
  FlightTicket ticket_;
};

using WorkPtr = std::shared_ptr<Work>;  // owners: the caller and the thread that runs the operation

}  // namespace paceline
