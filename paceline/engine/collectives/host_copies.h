#pragma once

// HostCopies: a collective of device memory that is carried out on copies in host memory, because
// the group has no backend for the device.

#include "paceline/engine/collectives/device_order.h"
#include "paceline/engine/core/deadline.h"

namespace paceline {

// The order of such a call, whose buffers are the copies. The thread that carries out the call
// calls the functions in this order: fetch(), the collective, deliver(), settle().
//
// Thread safety: only that thread calls these functions.
class HostCopies : public DeviceOrder {
 public:
  // Waits until the copies have the device's values. Error(kTimeout) at the deadline.
  virtual void fetch(Deadline deadline) const = 0;
  // Queues the writing of the results to the device; returns an event after it.
  virtual DeviceEvent deliver() const = 0;
  // Waits until that has ended. Error(kTimeout) at the deadline.
  virtual void settle(Deadline deadline) const = 0;
};

}  // namespace paceline
