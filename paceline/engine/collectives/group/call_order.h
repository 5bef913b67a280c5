#pragma once

// Runs one operation of a group at a time, in the order of the calls. A blocking call that finds no
// operation under way runs in the calling thread and takes no lock (Turn). Every other call waits
// in a queue (add()) for a thread of the group, which the first queued call starts, and which runs
// the queued calls.
//
// An object that a call keeps alive may own the CallOrder itself. The CallOrder may then be
// destroyed on the group's thread. In that case the destructor waits for nothing, the calls left in
// the queue fail, and the thread ends without touching the CallOrder again.
//
// If a device's library completes an operation's Work, the CallOrder counts the operation as ended
// once it has been queued on the device: the next operation can then be queued behind it.
//
// Invariants. `under_way_` counts the calls that run or wait; `calls` is the queue of those that
// wait. A waiting call is counted from the moment when it enters the queue, under the queue's
// mutex, until it has ended.
//
// (1) At most one operation runs. A call has the turn in the calling thread if it took under_way_
//     from 0 to 1. The group's thread has the turn if under_way_ == calls.size() > 0 with the mutex
//     held: then all counted calls are waiting, so none runs. A running call is counted and is not
//     in the queue. So while it runs, under_way_ is at least 1, and no call can take it from 0 to
//     1; and under_way_ is larger than calls.size(), so the group's thread does not have the turn.
// (2) Calls do not overtake each other. A call can take under_way_ from 0 to 1 only when no call
//     waits; otherwise it is queued after the waiting calls.
// (3) An operation sees what the previous operation wrote. Every operation ends with a fetch_sub of
//     release order, and begins with an acquire: the successful compare_exchange, or the thread's
//     load in has_turn(). Calls that were added in between change the counter with relaxed order,
//     but by read-modify-writes, which continue the release sequence. The relaxed load before the
//     compare_exchange is only a hint.
// (4) No wake-up is lost. A call that gives the turn back and leaves others waiting locks the mutex
//     before it notifies: the thread has either not looked at the counter yet, or sleeps. If no
//     call waits at that moment, the next call that is added notifies the thread itself, and the
//     thread then finds under_way_ == calls.size().
//
// Thread safety: every method may be called from any thread.

#include <atomic>
#include <cstddef>
#include <functional>
#include <memory>
#include <stop_token>
#include <string>
#include <vector>

#include "paceline/engine/collectives/backend.h"
#include "paceline/engine/core/system/host.h"

namespace paceline {

class CallOrder {
 public:
  using Operation = std::function<void(const WaitOptions&)>;
  using Runner = std::function<void(const Operation&, const WaitOptions&)>;

  struct Call {
    Operation operation;
    Deadline deadline;
    // Completed with the operation's outcome, unless a device's library completes it later
    // (Work::is_watched()).
    WorkPtr work;
    std::shared_ptr<void> keep_alive;  // dropped before the Work completes
  };

  // The turn of a call that runs in the calling thread. The turn ends with this object.
  class Turn {
   public:
    explicit Turn(CallOrder& order) : order_(order), is_mine_(order.take_if_idle()) {}
    ~Turn() {
      if (is_mine_) order_.give_back();
    }
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;
    // False if another operation is under way: add() the call instead.
    explicit operator bool() const { return is_mine_; }

   private:
    CallOrder& order_;
    const bool is_mine_;
  };

  // `run` runs each queued operation, on the group's thread.
  explicit CallOrder(Runner run);
  // Waits until all added calls have completed. Does not wait in a child of fork(), which does not
  // have the group's thread, nor on the thread that runs the queued calls; on that thread, the
  // remaining calls end with Error(kAborted) and are not run.
  ~CallOrder();
  CallOrder(const CallOrder&) = delete;
  CallOrder& operator=(const CallOrder&) = delete;

  // Whether an operation is under way, apart from one that has been queued on a device completely.
  bool is_busy() const;
  // The names of the added calls that are under way, in order.
  std::vector<std::string> names_under_way() const;
  void add(Call call);

 private:
  bool take_if_idle() noexcept {
    std::size_t none = 0;
    return under_way_.load(std::memory_order_relaxed) == 0 &&
           under_way_.compare_exchange_strong(none, 1, std::memory_order_acquire);
  }
  void give_back() noexcept {
    if (under_way_.fetch_sub(1, std::memory_order_release) > 1) wake();
  }
  void wake() noexcept;

  struct Queue;
  void run_queued(Queue& queue, const std::stop_token& stop);
  void drop_remaining_calls();

  // Calls that run or wait; see the invariants above.
  std::atomic<std::size_t> under_way_ = 0;
  const Runner run_;
  const OwnerProcess owner_;
  const std::shared_ptr<Queue> queue_;  // owners: this object and the thread
};

}  // namespace paceline
