#pragma once

// What an agent reports to and gets its orders from: the coordinator of its job, in this process
// (coordinator_host.h) or in that of another node's agent (coordinator_link.h).
//
// Thread safety: none.

#include <string>
#include <vector>

#include "paceline/engine/core/deadline.h"
#include "paceline/launcher/messages/agent_messages.h"

namespace paceline::launcher {

class JobControl {
 public:
  virtual ~JobControl() = default;

  virtual void report(const Report& report) = 0;
  // The orders since the last call.
  virtual std::vector<Order> take_orders() = 0;
  // Once after each turn of the loop, and when next_deadline() has passed.
  virtual void tend() = 0;
  virtual Deadline next_deadline() const = 0;
  // Why the coordinator is gone; empty while it is there.
  virtual std::string lost() const = 0;
  // Everything that was sent has left this process.
  virtual bool flushed() const = 0;
};

}  // namespace paceline::launcher
