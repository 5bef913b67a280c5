#pragma once

// A thread for the calls of a library that blocks without a deadline: a thread that waits for a
// call can give up, because of a deadline or a dead peer, while the library cannot.
//
// A call that was given up goes on, with all that it captured, until the library lets go of it or
// the process ends; without its BlockingCalls no one owns the thread. There is no SIGPIPE in it,
// nor in the threads that a library starts from it (broken_pipe_guard.h).
//
// Thread safety: one run() at a time.

#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "paceline/engine/core/deadline.h"
#include "paceline/engine/core/owner_process.h"
#include "paceline/engine/transport/mesh.h"

namespace paceline {

class BlockingCalls {
 public:
  explicit BlockingCalls(const std::string& thread_name);
  BlockingCalls(const BlockingCalls&) = delete;
  BlockingCalls& operator=(const BlockingCalls&) = delete;
  ~BlockingCalls();

  // Waits for `call` and throws what it threw. Error(kTimeout), which says that `what` timed out,
  // and the mesh's failures end the wait; the call is given up then, and there must be no other
  // before catch_up().
  void run(std::function<void()> call, Mesh& mesh, Deadline deadline, const std::string& what);
  // As run(), but nothing else than the deadline ends the wait. False when the call was given up.
  bool run_until(Deadline deadline, std::function<void()> call);
  bool given_up() const { return given_up_; }
  // Waits until nothing is under way, not even an abandoned call, whose outcome is never reported.
  // False when that takes longer.
  bool catch_up(Deadline deadline);

 private:
  struct Exchange;

  void rethrow();

  const OwnerProcess owner_;
  const std::shared_ptr<Exchange> exchange_;  // with the thread
  std::thread thread_;
  bool given_up_ = false;
};

}  // namespace paceline
