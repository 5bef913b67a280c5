#pragma once

// An operation under way (Work), and the place of an operation on a device's memory among the
// device's other work (DeviceOrder).

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "paceline/engine/collectives/collective.h"
#include "paceline/engine/core/deadline.h"
#include "paceline/engine/core/error.h"
#include "paceline/engine/telemetry/flight_recorder.h"

namespace paceline {

// The last owner destroys the event.
using DeviceEvent = std::shared_ptr<void>;

// The place of a collective on a device's memory among the device's other work. A device carries
// out later, stream by stream, what threads have given it; an *event* marks a place in a stream,
// and a stream can be told to wait for one. Neither makes a thread wait.
//
// The layer that knows the caller's streams implements this
// (paceline/training/tensor/tensor_view.h); the device's library asks for it. Events are the
// device's own (cudaEvent_t), untyped: the engine knows no CUDA.
//
// Thread safety: every method may be called from any thread.
class DeviceOrder {
 public:
  virtual ~DeviceOrder() = default;

  // Where the caller's stream was when the call was made: the library's stream waits for it before
  // it touches a buffer. Valid as long as this object.
  virtual void* ready() const = 0;
  // The calling thread's stream waits for `event`.
  virtual void wait_for(void* event) const = 0;
};

class Work;

// Moves operations that advance only while a thread waits for them.
class Progress {
 public:
  virtual ~Progress() = default;
  // Until `work` has completed or `limit` is there, or another thread does it.
  virtual void progress(const Work& work, Deadline limit) = 0;
};

// An operation under way. The caller keeps the buffers alive until it has completed.
//
// An operation on a device's memory that was called with a DeviceOrder has two ends. The first is
// when the device has been given all of it: from then on the caller can go on giving the device
// work that comes after it, so wait() ends there, with the calling thread's stream behind the
// operation. The second is when the result is there: then it has completed. What goes wrong between
// the two finishes the group, so that the next call throws it.
//
// Thread safety: every method may be called from any thread. Dropping a Work does not cancel the
// operation.
class Work {
 public:
  // `describe` is asked for the words of a time-out's message; `order` is null but for device
  // memory; a waiting thread helps `progress`, where there is one.
  explicit Work(std::function<std::string()> describe,
                std::shared_ptr<const DeviceOrder> order = nullptr,
                std::weak_ptr<Progress> progress = {})
      : describe_(std::move(describe)), order_(std::move(order)), progress_(std::move(progress)) {}

  // Waits until the operation has ended (above) and throws its error, if it had one. The
  // operation's own deadline ends the wait.
  void wait();
  // As wait(), but Error(kTimeout) after `timeout`, with what the records tell; the operation
  // continues.
  void wait(std::chrono::milliseconds timeout);
  bool is_completed() const { return done_.load(std::memory_order_acquire); }
  // `then` is called once, with the operation's error or null: in the thread that completes it (the
  // group's own; of a message, the thread that moves it), or here and now when it has completed
  // already. wait() may return before. `then` may start operations; it must wait for none of this
  // group, and must not throw. Several are called in the order in which they were given.
  void on_complete(std::function<void(const Error* error)> then);
  std::string description() const { return describe_(); }
  // The rank that a completed receive took its message from; -1 otherwise.
  int source_rank() const;

  // For libraries of a device: the device has all of the operation, and `done` comes after it.
  // Requires: an order.
  void queue(DeviceEvent done);
  bool is_queued() const;
  // For groups: it is this collective of theirs, and has begun. `recorder` may be null.
  void begin(const std::string& self, const std::string& group, const Fingerprint& fingerprint,
             std::shared_ptr<FlightRecorder> recorder);
  // For executors: ends the operation; null means success. Only the first call counts. Waiters get
  // copies of the error: threads must not share an exception object.
  void complete(std::exception_ptr error, int source_rank = -1);
  // Records the end, even if it is over already. At most once.
  void record_end(std::shared_ptr<FlightRecorder> recorder, FlightTicket ticket);

 private:
  struct Begun {
    std::string self, group;
    Fingerprint fingerprint;
    std::shared_ptr<FlightRecorder> recorder;
  };

  void help(Deadline limit) const;
  bool may_go_on() const { return done_ || queued_ != nullptr; }  // requires mutex_
  void go_on(std::unique_lock<std::mutex> lock) const;            // requires may_go_on()
  [[noreturn]] void throw_slow(std::chrono::milliseconds timeout,
                               std::unique_lock<std::mutex> lock) const;
  void throw_error() const;  // requires mutex_; if there is one
  void record();             // requires mutex_, and that it has ended

  const std::function<std::string()> describe_;
  const std::shared_ptr<const DeviceOrder> order_;
  const std::weak_ptr<Progress> progress_;
  mutable std::mutex mutex_;  // guards what is below
  std::condition_variable completed_;
  std::optional<Begun> begun_;
  // Written last: then error_ and source_rank_ stay as they are, and need no lock.
  std::atomic<bool> done_ = false;
  DeviceEvent queued_;  // what comes after an operation that the device has; null before
  std::optional<Error> error_;
  std::vector<std::function<void(const Error*)>> then_;
  int source_rank_ = -1;
  std::shared_ptr<FlightRecorder> recorder_;  // owners: the groups of this rank, and this
  FlightTicket ticket_;
};

using WorkPtr = std::shared_ptr<Work>;  // owners: the caller and the thread that runs the operation

}  // namespace paceline
