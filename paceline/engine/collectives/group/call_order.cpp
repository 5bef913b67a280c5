#include "paceline/engine/collectives/group/call_order.h"

#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "paceline/engine/core/system/thread.h"

namespace paceline {

struct CallOrder::Queue {
  std::mutex mutex;  // guards `calls` and `current`, and the start of `thread`
  std::condition_variable changed;
  std::deque<Call> calls;
  WorkPtr current;           // the Work of the operation that the thread runs
  bool is_orphaned = false;  // the CallOrder was destroyed; only the thread uses this flag
  std::jthread thread;
};

CallOrder::CallOrder(Runner run) : run_(std::move(run)), queue_(std::make_shared<Queue>()) {}

CallOrder::~CallOrder() {
  // In a child of fork() the thread does not exist, but its reference keeps the queue. The queue
  // must not be destroyed there: the parent's threads may have held its mutex during the fork.
  if (!owner_.is_this() || !queue_->thread.joinable()) return;
  if (queue_->thread.get_id() == std::this_thread::get_id()) {
    queue_->thread.detach();
    queue_->is_orphaned = true;
    drop_remaining_calls();
    return;
  }
  queue_->thread.request_stop();
  wake();
  queue_->thread.join();
}

// Destroys the calls outside the lock, because the destructors of the objects that they keep alive
// may run any code.
void CallOrder::drop_remaining_calls() {
  std::deque<Call> left;
  {
    const std::lock_guard lock(queue_->mutex);
    left.swap(queue_->calls);
  }
  const auto cause = std::make_exception_ptr(
      Error(ErrorCode::kAborted, "the group was destroyed before this operation began"));
  for (; !left.empty(); left.pop_front()) {
    const WorkPtr work = left.front().work;
    left.front().keep_alive.reset();
    work->complete(cause);
  }
}

bool CallOrder::is_busy() const {
  const std::lock_guard lock(queue_->mutex);
  const bool is_at_device = queue_->current != nullptr && queue_->current->is_queued();
  return under_way_.load(std::memory_order_acquire) > (is_at_device ? 1 : 0);
}

std::vector<std::string> CallOrder::names_under_way() const {
  const std::lock_guard lock(queue_->mutex);
  std::vector<std::string> names;
  if (queue_->current && !queue_->current->is_queued()) {
    names.push_back(queue_->current->description());
  }
  for (const Call& call : queue_->calls) names.push_back(call.work->description());
  return names;
}

void CallOrder::add(Call call) {
  {
    const std::lock_guard lock(queue_->mutex);
    // Starting the thread may fail, so it comes first: then the call is neither queued nor counted.
    if (!queue_->thread.joinable()) {
      queue_->thread = start_thread("paceline-async", [this, queue = queue_](std::stop_token stop) {
        run_queued(*queue, stop);
      });
    }
    queue_->calls.push_back(std::move(call));
    under_way_.fetch_add(1, std::memory_order_relaxed);
  }
  queue_->changed.notify_all();
}

// Takes the lock before it notifies, so that a thread that has checked its condition but does not
// sleep yet does not miss the notification (invariant 4).
void CallOrder::wake() noexcept {
  { const std::lock_guard lock(queue_->mutex); }
  queue_->changed.notify_all();
}

void CallOrder::run_queued(Queue& queue, const std::stop_token& stop) {
  std::unique_lock lock(queue.mutex);
  const auto has_turn = [&] {
    return !queue.calls.empty() && under_way_.load(std::memory_order_acquire) == queue.calls.size();
  };
  for (;;) {
    queue.changed.wait(
        lock, [&] { return has_turn() || (stop.stop_requested() && queue.calls.empty()); });
    if (queue.calls.empty()) return;
    auto next = std::make_optional(std::move(queue.calls.front()));
    queue.calls.pop_front();
    queue.current = next->work;
    lock.unlock();
    // The device may use the objects kept alive for longer than this call runs.
    if (next->work->has_order()) next->work->hold(std::move(next->keep_alive));
    std::exception_ptr error;
    try {
      run_(next->operation,
           {.deadline = next->deadline, .may_spin = false, .work = next->work.get()});
    } catch (...) {
      error = std::current_exception();
    }
    // The turn is given back first, so that a thread that learns of the completion finds the group
    // idle. The group may then be destroyed, by that thread or with the objects that the call kept
    // alive.
    lock.lock();
    under_way_.fetch_sub(1, std::memory_order_release);
    WorkPtr work = std::exchange(queue.current, nullptr);
    lock.unlock();
    // Drops the objects that the call kept alive before any thread learns of the completion.
    next.reset();
    if (error || !work->is_watched()) work->complete(error);
    work.reset();
    if (queue.is_orphaned) return;
    lock.lock();
  }
}

}  // namespace paceline
