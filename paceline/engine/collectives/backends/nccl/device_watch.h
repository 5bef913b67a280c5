#pragma once

// A thread that watches operations which a library has queued on a device. It polls their events,
// and completes each Work when its operation has finished. An operation whose peer has died never
// finishes, so the thread also looks for errors that no event reports; if it finds one, it fails
// the group and every watched Work. The thread sleeps while nothing is watched.
//
// An object that a call kept alive may own the group, which is then destroyed on this thread.
//
// Thread safety: every method may be called from any thread; the destructor by one thread only.

#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "paceline/engine/collectives/device_order.h"
#include "paceline/engine/collectives/work.h"
#include "paceline/engine/core/deadline.h"
#include "paceline/engine/core/error.h"

namespace paceline {

struct WatchedOperation {
  WorkPtr work;
  DeviceEvent done;  // marks the operation's end
  Deadline deadline = Deadline::never();
  std::string what;      // "all_reduce #3", for errors
  std::string name;      // "all_reduce", for Error::operation()
  int source_rank = -1;  // the sender of a received message
  // Possible reasons for a delay, for the error at the deadline; if empty, those of a collective.
  std::string if_late = {};
};

// The functions and names by which the thread uses the device and the group. They must stay valid
// as long as the watch exists.
struct WatchHooks {
  std::string self, group;                   // for errors
  std::function<void()> begin;               // called once, in the thread
  std::function<bool(void* event)> is_done;  // whether the device has passed `event`; may throw
  std::function<void()> check_failures;      // throws the error of a peer or the library, if any
  std::function<Error(const Error&)> fail;   // fails the group, and returns the first cause
};

class DeviceWatch {
 public:
  explicit DeviceWatch(WatchHooks hooks);
  // Waits until every watched operation has ended, at the latest at its deadline.
  ~DeviceWatch();
  DeviceWatch(const DeviceWatch&) = delete;
  DeviceWatch& operator=(const DeviceWatch&) = delete;

  // Watches `operation`, or completes it at once with the error of an earlier failure.
  void add(WatchedOperation operation);
  // The number of operations under way on the device.
  std::size_t count() const;
  // Whether an operation has failed.
  bool has_failed() const;

 private:
  struct State;

  const std::shared_ptr<State> state_;  // owners: this object and its thread
};

}  // namespace paceline
