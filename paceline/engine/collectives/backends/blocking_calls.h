#pragma once

// Tools for libraries that block: waits that end when a peer dies or the deadline passes, a thread
// for calls without a deadline, turns for a library that serves one group at a time, and a guard
// against SIGPIPE.

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
// process by SIGPIPE. While a guard exists, this thread, and every thread that it starts, gets
// EPIPE instead; the process's own handling of the signal does not change.
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

// Calls `attempt`, which may block for up to 0.5 s (Vigil::kRound), until it returns true. Throws
// the mesh's error if the group fails and, at the deadline, Error(kTimeout) with the text that
// `late` makes from the seconds waited.
void wait_until(const std::function<bool()>& attempt, Mesh& mesh, Deadline deadline,
                const std::function<std::string(double seconds)>& late);

// Polls `done` until it returns true, that is, until a library's operation has ended; after 0.5 ms,
// sleeps for 50 us between polls. Error(kTimeout), which names `what`, and failures of the mesh end
// the wait within milliseconds.
void poll_until(const std::function<bool()>& done, Mesh& mesh, Deadline deadline,
                const std::string& what);

// A thread for the calls of a library that blocks without a deadline. The library cannot abandon a
// call, but the thread that waits for the call can, at a deadline or when a peer dies.
//
// An abandoned call continues, and keeps its captured objects alive, until the library returns or
// the process ends; the destructor detaches a thread whose call was abandoned. The thread gets no
// SIGPIPE, and neither do the threads that the library starts on it (BrokenPipeGuard).
//
// Thread safety: one run() at a time.
class BlockingCalls {
 public:
  explicit BlockingCalls(const std::string& thread_name);
  BlockingCalls(const BlockingCalls&) = delete;
  BlockingCalls& operator=(const BlockingCalls&) = delete;
  ~BlockingCalls();

  // Runs `call` on the thread, waits for it and rethrows its exception. Error(kTimeout), which
  // names `what`, and failures of the mesh end the wait; the call is then abandoned, and catch_up()
  // must return true before the next call.
  void run(std::function<void()> call, Mesh& mesh, Deadline deadline, const std::string& what);
  // Like run(), but only the deadline ends the wait. False if the call was abandoned.
  bool run_until(Deadline deadline, std::function<void()> call);
  bool given_up() const { return given_up_; }
  // Waits until no call is under way, not even an abandoned one, whose result is never reported.
  // False if the deadline passes first.
  bool catch_up(Deadline deadline);

 private:
  struct Exchange;

  void rethrow();

  const OwnerProcess owner_;
  const std::shared_ptr<Exchange> exchange_;  // shared with the thread
  std::thread thread_;
  bool given_up_ = false;
};

// The turn of a group: its right to use a library that serves one group of a process at a time. All
// ranks of a group hold the turns of their processes at the same time.
//
// Groups with several processes in common may be used in a different order in each process. If each
// process admitted the first group to arrive, two groups could be inside the library in different
// processes and wait for each other. So each rank of a group first tries to take the turn of its
// process, and the ranks compare the results: if every rank has its turn, they continue; otherwise
// they give their turns back. After a failed attempt, the group's ranks queue in the order of their
// ranks in the job: no rank waits for its turn before the turns of all lower ranks are held, so no
// circle of waiting ranks can form (ordered acquisition of resources: Havender, "Avoiding deadlock
// in multitasking systems", 1968).
//
// Cost: one agreement of the group's ranks for each turn; if another group is inside the library,
// one more agreement for each rank.
//
// The destructor gives the turn back. Thread safety: all methods are safe.
class ProcessTurn {
 public:
  // Takes the turn; null if another group of this process holds it for longer than `wait`.
  static std::shared_ptr<ProcessTurn> take(std::chrono::nanoseconds wait);
  // True if the turn was kept forever, or counts as lost (give_up()).
  static bool is_lost();
  ~ProcessTurn();
  ProcessTurn(const ProcessTurn&) = delete;
  ProcessTurn& operator=(const ProcessTurn&) = delete;

  // Call this when no thread waits any more for the call that holds the turn: that call may never
  // return. Three seconds later the turn counts as lost, until the call returns.
  void give_up();
  // Keeps the turn forever, because the library cannot serve another group any more.
  void keep();

 private:
  ProcessTurn() = default;

  bool is_taken_ = false;
};

// A collective of the group: returns true if `mine` is true on every rank.
using Agree = std::function<bool(bool mine)>;

// Collective: returns on every rank once every rank has the turn of its process. Requires: every
// rank of the group has arrived, so that no rank holds a turn while it waits for a rank that is
// still inside another group. `world_ranks`: the members' ranks in the job. Errors, after which
// this rank holds no turn: those of `agree`, the mesh's failures, kSystem if the turn is lost, and
// kTimeout if another group of this process holds the turn until the deadline.
std::shared_ptr<ProcessTurn> take_turns(const Agree& agree, const std::vector<int>& world_ranks,
                                        Mesh& mesh, Deadline deadline, const std::string& what);

}  // namespace paceline
