#pragma once

// Waits for descriptors of every kind (pipes, pidfds, timers, sockets) in one place and calls the
// handler of each that is ready, in the order in which they became ready, as epoll reports it.
// Parts of the agent that know nothing of each other share one loop and so one thread. Before it
// calls any handler, the loop notices whether this process stood still (engine/core/awake_clock.h).
//
// Thread safety: none. Descriptors stay their owners'; forget() one before closing it. A handler
// may watch and forget others and itself; one that was forgotten is not called any more, also when
// its event had already been fetched.

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
  // Does nothing when `fd` is not watched.
  void change(int fd, std::uint32_t events);
  void forget(int fd);

  // Waits until something is ready, at most until the deadline, and calls the handlers.
  void turn(Deadline deadline);
  // Notices whether this process stood still since the turn. For callers that judge after a turn
  // whether others are silent.
  void look() { vigil_.look(); }

 private:
  struct Watched {
    std::uint32_t id;  // tells it from an earlier one with the same descriptor number
    std::shared_ptr<Handler> handler;  // owned by the map and by a call under way
  };

  Fd epoll_;
  Vigil vigil_;
  std::uint32_t last_id_ = 0;
  std::unordered_map<int, Watched> watched_;
};

}  // namespace paceline::launcher
