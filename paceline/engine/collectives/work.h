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

// An event; its last owner destroys it.
using DeviceEvent = std::shared_ptr<void>;

// The place of a collective on a device's memory among the device's other work. Threads queue work
// on the device's streams; the device carries it out later, each stream in order. An *event* marks
// a place in a stream, and a stream can be made to wait for an event. Neither makes a thread wait.
//
// The layer that knows the caller's streams implements this class
// (paceline/training/tensor/tensor_view.h); the device's library calls it. Events are the device's
// own (cudaEvent_t), untyped, because the engine does not depend on CUDA.
//
// Thread safety: every method may be called from any thread.
class DeviceOrder {
 public:
  virtual ~DeviceOrder() = default;

  // The event of the caller's stream at the time of the call: the library's stream waits for it
  // before it touches a buffer. Valid as long as this object exists.
  virtual void* ready() const = 0;
  // Makes the calling thread's stream wait for `event`.
  virtual void wait_for(void* event) const = 0;
};

class Work;

// Advances operations that make progress only while a thread waits for them.
class Progress {
 public:
  virtual ~Progress() = default;
  // Advances operations until `work` has completed, `limit` has passed, or another thread advances
  // them.
  virtual void progress(const Work& work, Deadline limit) = 0;
};

// An operation under way. The caller keeps the buffers alive until it has completed.
//
// An operation on a device's memory that was called with a DeviceOrder ends twice. It ends first
// when all of it has been queued on the device. From then on the caller can queue work that follows
// the operation, so wait() returns then, with the calling thread's stream ordered after the
// operation. It ends again when its result is complete; only then has the operation completed. An
// error between the two ends finishes the group, so the next call throws it.
//
// Thread safety: every method may be called from any thread. Dropping a Work does not cancel the
// operation.
class Work : public std::enable_shared_from_this<Work> {
 public:
  // `describe` provides the text for a timeout error. `order` is null except for device memory. A
  // waiting thread helps `progress`, if there is one.
  explicit Work(std::function<std::string()> describe,
                std::shared_ptr<const DeviceOrder> order = nullptr,
                std::weak_ptr<Progress> progress = {})
      : describe_(std::move(describe)), order_(std::move(order)), progress_(std::move(progress)) {}

  // Waits until the operation has ended (see above), and throws its error, if any. The operation's
  // own deadline ends the wait.
  void wait();
  // Like wait(), but throws Error(kTimeout) after `timeout`, with the verdict of the flight
  // records; the operation continues.
  void wait(std::chrono::milliseconds timeout);
  bool is_completed() const { return done_.load(std::memory_order_acquire); }
  // `then` is called once, with the operation's error or null, in the thread that completes the
  // operation: the group's own thread or, for a message, the thread that moves it. If the operation
  // has already completed, `then` is called at once. wait() may return before that. `then` may
  // start operations, but must not wait for any operation of this group, and must not throw.
  // Several functions are called in the order in which they were registered.
  void on_complete(std::function<void(const Error* error)> then);
  std::string description() const { return describe_(); }
  // The rank from which a completed receive took its message; -1 otherwise.
  int source_rank() const;

  // Called by a device's library once the whole operation has been queued on the device; `done` is
  // an event after it. Requires: the Work has an order. `is_watched`: the library watches the
  // event, and completes this Work once the device has finished, or has failed; the call that
  // queued the operation returns before.
  void queue(DeviceEvent done, bool is_watched = false);
  bool is_queued() const;
  // Whether a device's library completes this Work.
  bool is_watched() const;
  bool has_order() const { return order_ != nullptr; }
  // Keeps an object until the operation has completed. Requires: the Work has an order.
  void hold(std::shared_ptr<void> object);
  // Called by a group when the operation begins, as the collective of this fingerprint. `recorder`
  // may be null.
  void begin(const std::string& self, const std::string& group, const Fingerprint& fingerprint,
             std::shared_ptr<FlightRecorder> recorder);
  // Called by executors: ends the operation; null means success. Only the first call counts.
  // Waiters get copies of the error: threads must not share an exception object.
  void complete(std::exception_ptr error, int source_rank = -1);
  // Records the end of the operation, even if it has already ended. Call at most once.
  void record_end(std::shared_ptr<FlightRecorder> recorder, FlightTicket ticket);

 private:
  struct Begun {
    std::string self, group;
    Fingerprint fingerprint;
    std::shared_ptr<FlightRecorder> recorder;
  };

  bool await_end(Deadline end, std::unique_lock<std::mutex>& lock) const;
  void help(Deadline limit) const;
  bool may_go_on() const { return done_ || queued_ != nullptr; }  // requires mutex_
  void go_on(std::unique_lock<std::mutex> lock) const;            // requires may_go_on()
  [[noreturn]] void throw_slow(std::chrono::milliseconds timeout,
                               std::unique_lock<std::mutex> lock) const;
  void throw_error() const;  // requires mutex_; throws the error, if there is one
  void record();             // requires mutex_, and that the operation has ended

  const std::function<std::string()> describe_;
  const std::shared_ptr<const DeviceOrder> order_;
  const std::weak_ptr<Progress> progress_;
  mutable std::mutex mutex_;  // guards the members below
  mutable std::condition_variable completed_;
  std::optional<Begun> begun_;
  // Stored last (release): a thread that loads true (acquire) may read error_ and source_rank_
  // without the lock, because they do not change any more.
  std::atomic<bool> done_ = false;
  // An event after the operation; null until the operation has been queued on the device.
  DeviceEvent queued_;
  bool is_watched_ = false;
  std::shared_ptr<void> held_;
  std::optional<Error> error_;
  std::vector<std::function<void(const Error*)>> then_;
  int source_rank_ = -1;
  std::shared_ptr<FlightRecorder> recorder_;  // owners: the groups of this rank, and this object
  FlightTicket ticket_;
};

using WorkPtr = std::shared_ptr<Work>;  // owners: the caller and the thread that runs the operation

}  // namespace paceline
