#pragma once

// One operation of a group at a time, in the order of the calls. A call that finds nothing under
// way runs in the calling thread and takes no lock; every other one waits for its turn in a queue,
// from which a thread of the group's takes them. That thread begins with the first that waits.
//
// What a call keeps alive may own the order itself, so that its end comes on that thread: then
// there is nothing to wait for, what is left fails, and the thread goes without touching the order
// again.
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

  struct Call {
    Operation run;
    Deadline deadline;
    WorkPtr work;                      // completed with the operation's outcome
    std::shared_ptr<void> keep_alive;  // dropped before that
  };

  // The turn of a call that runs in its own thread, until it goes out of scope.
  class Turn {
   public:
    explicit Turn(CallOrder& order) : order_(order), is_mine_(order.take_if_idle()) {}
    ~Turn() {
      if (is_mine_) order_.give_back();
    }
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;
    // False: something is under way, add() the call.
    explicit operator bool() const { return is_mine_; }

   private:
    CallOrder& order_;
    const bool is_mine_;
  };

  CallOrder();
  // Ends once everything that was added has completed. At once in a child of fork(), which has no
  // thread to wait for; also on the thread that works it off: what is left ends with
  // Error(kAborted) and is not run.
  ~CallOrder();
  CallOrder(const CallOrder&) = delete;
  CallOrder& operator=(const CallOrder&) = delete;

  // Whether anything is under way, but for one operation that a device has been given all of.
  bool is_busy() const;
  // What that is, of the calls that were added, in order.
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
  void work_off(Queue& queue, const std::stop_token& stop);
  void drop_what_is_left();

  // Calls that run or wait. The call that takes it from 0 to 1 has the turn without a lock; calls
  // that wait are counted under the queue's, so one more there than here means that an operation
  // runs.
  std::atomic<std::size_t> under_way_ = 0;
  const OwnerProcess owner_;
  const std::shared_ptr<Queue> queue_;  // owners: this and the thread
};

}  // namespace paceline
