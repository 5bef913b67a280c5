#pragma once

// Waits for descriptors of every kind (pipes, pidfds, timers, sockets) in one place, and calls the
// handler of each one that is ready, in the order in which epoll reports them. Parts of the agent
// that do not know each other share one loop and therefore one thread. Before the loop calls any
// handler, it checks whether this process was stopped (engine/core/awake_clock.h).
//
// Thread safety: none. The caller keeps the ownership of a descriptor, and calls forget() before
// closing it. A handler may watch and forget any descriptor, including its own. A handler that has
// been forgotten is not called again, even if its event has already been fetched.

#include <cstdint>
#include <functional>
#include <memory>
#include <unordered_map>

#include <sys/epoll.h>

#include "paceline/engine/core/awake_clock.h"
#include "paceline/engine/core/deadline.h"
#include "paceline/engine/core/system/fd.h"

namespace paceline::launcher {

class EventLoop {
 public:
  using Handler = std::function<void()>;

  // Error(kSystem).
  EventLoop();

  // Error(kSystem) for a descriptor that cannot be waited for, such as a plain file's.
  void watch(int fd, Handler handler, std::uint32_t events = EPOLLIN);
  // Changes the events to wait for. Does nothing when `fd` is not watched.
  void change(int fd, std::uint32_t events);
  void forget(int fd);

  // Waits until something is ready, at most until the deadline, and calls the handlers.
  void turn(Deadline deadline);
  // Checks whether this process was stopped since the last turn(). Call this before judging whether
  // another process is silent.
  void look() { vigil_.look(); }

 private:
  struct Watched {
    std::uint32_t id;                  // differs from the id of an earlier watch of this descriptor
    std::shared_ptr<Handler> handler;  // owned by the map and by a call under way
  };

  Fd epoll_;
  Vigil vigil_;
  std::uint32_t last_id_ = 0;
  std::unordered_map<int, Watched> watched_;
};

}  // namespace paceline::launcher
