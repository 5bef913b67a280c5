#pragma once

// What it takes to live with libraries that block: waits that end when a peer dies or time is over,
// a thread for calls without a deadline, turns for a library that serves one group at a time, and a
// guard against SIGPIPE.

#include <chrono>
#include <csignal>
#include <ctime>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "paceline/engine/core/deadline.h"
#include "paceline/engine/core/system/host.h"
#include "paceline/engine/transport/mesh.h"

namespace paceline {

// Gloo and oneCCL write to their sockets without MSG_NOSIGNAL, so a peer's death would end this
// process by SIGPIPE. While a guard lives, this thread, and every thread that it starts, gets EPIPE
// instead; the process's own handling of the signal stays.
class BrokenPipeGuard {
 public:
  BrokenPipeGuard() {
    sigset_t pending;
    sigpending(&pending);
    was_pending_ = sigismember(&pending, SIGPIPE) == 1;
    sigemptyset(&pipe_);
    sigaddset(&pipe_, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &pipe_, &before_);
  }
  ~BrokenPipeGuard() {
    const timespec at_once{};
    if (!was_pending_) {
      while (sigtimedwait(&pipe_, nullptr, &at_once) > 0) {
      }
    }
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  BrokenPipeGuard(const BrokenPipeGuard&) = delete;
  BrokenPipeGuard& operator=(const BrokenPipeGuard&) = delete;

 private:
  sigset_t pipe_;
  sigset_t before_;
  bool was_pending_ = false;
};

// Calls `attempt`, which may block for some milliseconds, until it returns true. The mesh's
// failures end the wait, and so does the deadline: Error(kTimeout) with the text that `late` makes
// of the seconds waited.
void wait_until(const std::function<bool()>& attempt, Mesh& mesh, Deadline deadline,
                const std::function<std::string(double seconds)>& late);

// Waits for a library's operation that can only be asked whether it is done: polls, after 0.5 ms
// with naps of 50 us between. Error(kTimeout), which says `what` timed out, and the mesh's failures
// end the wait within milliseconds.
void poll_until(const std::function<bool()>& done, Mesh& mesh, Deadline deadline,
                const std::string& what);

// A thread for the calls of a library that blocks without a deadline: a thread that waits for a
// call can give up, because of a deadline or a dead peer, while the library cannot.
//
// A call that was given up goes on, with all that it captured, until the library lets go of it or
// the process ends; without its BlockingCalls no one owns the thread. There is no SIGPIPE in it,
// nor in the threads that a library starts from it (BrokenPipeGuard).
//
// Thread safety: one run() at a time.
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

// For a library that serves one group of a process at a time: at most one group is inside it, and
// all ranks of that group are at once.
//
// Groups that share processes may be used in another order on each of them. If each process let in
// the first to come, two groups could wait inside for each other. So the ranks of a group first
// try, each in its process, and ask each other: when all have the turn they go on, otherwise no
// rank keeps it. A group that fails queues in the order of the ranks in the job: no rank waits for
// a turn before those of all lower ones are held, which cannot end in a circle (ordered acquisition
// of resources: Havender, "Avoiding deadlock in multitasking systems", 1968).
//
// Cost: one agreement of the group's ranks a turn; when another group is inside, one more for each
// rank.
//
// Gives the turn back when it is destroyed. Thread safety: all methods are safe.
class ProcessTurn {
 public:
  // Null when another group of this process has it for longer than `wait`.
  static std::shared_ptr<ProcessTurn> take(std::chrono::nanoseconds wait);
  // The turn will not be given back, or may not be.
  static bool is_lost();
  ~ProcessTurn();
  ProcessTurn(const ProcessTurn&) = delete;
  ProcessTurn& operator=(const ProcessTurn&) = delete;

  // No thread waits any more for the call that has the turn, which may never return: the turn
  // counts as lost from three seconds later on, until it does.
  void give_up();
  // The library cannot serve another group any more: the turn is never given back.
  void keep();

 private:
  ProcessTurn() = default;

  bool is_taken_ = false;
};

// A collective of the group: true when every rank says `mine`.
using Agree = std::function<bool(bool mine)>;

// Collective: returns on every rank once all have their process's turn. Requires: every rank of the
// group has arrived, so that no rank keeps a turn for one that may yet wait for another group.
// `world_ranks` are those of the group's members in the job. Errors, after which no turn is kept:
// Agree's, the mesh's failures, kSystem when the turn is lost, and kTimeout when another group of
// this process does not give it back by the deadline.
std::shared_ptr<ProcessTurn> take_turns(const Agree& agree, const std::vector<int>& world_ranks,
                                        Mesh& mesh, Deadline deadline, const std::string& what);

}  // namespace paceline
