#pragma once

// The handle of an operation under way, with which a program waits for its end (Work).

#include <chrono>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "paceline/engine/core/error.h"

namespace paceline {

class Deadline;
class DeviceOrder;
class FlightRecorder;
class Progress;
struct Fingerprint;
struct FlightTicket;

// An operation under way. The caller keeps the buffers alive until the operation has completed.
//
// An operation on a device's memory that was called with a DeviceOrder ends twice. It ends first
// when all of it has been queued on the device. From then on the caller can queue work that follows
// the operation, so wait() returns at this first end, with the calling thread's stream ordered
// after the operation. It ends again when its result is complete; only then has the operation
// completed. An error between the two ends fails the group, so the next call throws that error.
//
// Thread safety: every method may be called from any thread. Dropping a Work does not cancel the
// operation.
class Work : public std::enable_shared_from_this<Work> {
 public:
  ~Work();
  Work(const Work&) = delete;
  Work& operator=(const Work&) = delete;

  // Waits until the operation has ended (see above), and throws its error, if any. The operation's
  // own deadline ends the wait.
  void wait();
  // Like wait(), but throws Error(kTimeout) after `timeout`, with the verdict of the flight
  // records; the operation continues.
  void wait(std::chrono::milliseconds timeout);
  bool is_completed() const;
  // `then` is called once, with the operation's error or null, in the thread that completes the
  // operation: the group's thread, the thread that moves a message, or the device library's. If the
  // operation has already completed, on_complete() calls `then`. wait() may return before `then` is
  // called. `then` may start operations, or end the group, but must not wait for an operation of
  // this group, and must not throw. Several functions are called in the order of registration.
  void on_complete(std::function<void(const Error* error)> then);
  std::string description() const;
  // The rank from which a receive took its message, once wait() has returned; -1 otherwise.
  int source_rank() const;

 public:  // internal
  // `describe` provides the text for a timeout error. `order` is null except for device memory. A
  // waiting thread calls `progress`, if there is one.
  explicit Work(std::function<std::string()> describe,
                std::shared_ptr<const DeviceOrder> order = nullptr,
                std::weak_ptr<Progress> progress = {});
  // Returns a Work that has completed, for calls that block.
  static std::shared_ptr<Work> completed();
  // Called by a device's library once the whole operation has been queued on the device; `done` is
  // an event after the operation. Requires: the Work has an order. `is_watched`: the library
  // watches the event, and completes this Work once the device has finished, or has failed; the
  // call that queued the operation returns earlier. `source_rank`: as in complete().
  void queue(std::shared_ptr<void> done, bool is_watched = false, int source_rank = -1);
  bool is_queued() const;
  // Whether a device's library completes this Work.
  bool is_watched() const;
  bool has_order() const;
  // Keeps `object` alive until the operation has completed. Requires: the Work has an order.
  void hold(std::shared_ptr<void> object);
  // Called by a group when the operation begins; `fingerprint` describes the operation. `recorder`
  // may be null.
  void begin(const std::string& self, const std::string& group, const Fingerprint& fingerprint,
             std::shared_ptr<FlightRecorder> recorder);
  // Called by executors: ends the operation; null means success. Only the first call counts.
  // Waiters get copies of the error: threads must not share an exception object.
  void complete(std::exception_ptr error, int source_rank = -1);
  // The two steps of complete(), for an executor that holds a lock: end() calls none of the
  // functions that on_complete() has registered, and returns whether there are any. call_back(),
  // called without the lock, calls them.
  bool end(std::exception_ptr error, int source_rank = -1);
  void call_back();
  // Records the end of the operation, even if it has already ended. Call at most once.
  void record_end(std::shared_ptr<FlightRecorder> recorder, FlightTicket ticket);

 private:
  struct State;

  bool await_end(Deadline end, std::unique_lock<std::mutex>& lock) const;
  void help(Deadline limit) const;
  bool may_go_on() const;                               // requires the mutex
  void go_on(std::unique_lock<std::mutex> lock) const;  // requires may_go_on()
  [[noreturn]] void throw_slow(std::chrono::milliseconds timeout,
                               std::unique_lock<std::mutex> lock) const;
  void throw_error() const;  // requires the mutex; throws the error, if there is one
  void record();             // requires the mutex, and that the operation has ended

  const std::unique_ptr<State> state_;
};

using WorkPtr = std::shared_ptr<Work>;  // owners: the caller and the thread that runs the operation

}  // namespace paceline
