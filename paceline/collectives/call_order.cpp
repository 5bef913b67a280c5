#include "paceline/collectives/call_order.h"

#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "paceline/core/thread.h"

namespace paceline {

struct CallOrder::Queue {
  std::mutex mutex;  // guards everything below
  std::condition_variable changed;
  std::deque<Call> calls;
  WorkPtr current;  // of the operation that the thread runs
  std::jthread thread;
};

CallOrder::CallOrder() : queue_(std::make_unique<Queue>()) {}

CallOrder::~CallOrder() {
  if (!owner_.is_this()) {
    // What the parent's threads held when it forked stays held here.
    [[maybe_unused]] const Queue* const left = queue_.release();
    return;
  }
  if (!queue_->thread.joinable()) return;
  queue_->thread.request_stop();
  wake();
  queue_->thread.join();
}

bool CallOrder::is_busy() const {
  const std::lock_guard lock(queue_->mutex);
  const bool is_at_device = queue_->current != nullptr && queue_->current->is_queued();
  return under_way_.load(std::memory_order_acquire) > (is_at_device ? 1 : 0);
}

void CallOrder::add(Call call) {
  {
    const std::lock_guard lock(queue_->mutex);
    under_way_.fetch_add(1, std::memory_order_relaxed);
    queue_->calls.push_back(std::move(call));
    if (!queue_->thread.joinable()) {
      queue_->thread =
          start_thread("paceline-async", [this](std::stop_token stop) { work_off(stop); });
    }
  }
  queue_->changed.notify_all();
}

// The lock: a thread that has looked for the change and does not sleep yet must not miss it.
void CallOrder::wake() noexcept {
  { const std::lock_guard lock(queue_->mutex); }
  queue_->changed.notify_all();
}

void CallOrder::work_off(const std::stop_token& stop) {
  std::unique_lock lock(queue_->mutex);
  auto& calls = queue_->calls;
  const auto has_turn = [&] {
    return !calls.empty() && under_way_.load(std::memory_order_acquire) == calls.size();
  };
  for (;;) {
    queue_->changed.wait(lock,
                         [&] { return has_turn() || (stop.stop_requested() && calls.empty()); });
    if (calls.empty()) return;
    auto next = std::make_optional(std::move(calls.front()));
    calls.pop_front();
    queue_->current = next->work;
    lock.unlock();
    std::exception_ptr error;
    try {
      next->run({.deadline = next->deadline, .may_spin = false, .work = next->work.get()});
    } catch (...) {
      error = std::current_exception();
    }
    next.reset();  // what it kept alive is free before anybody hears that it is done
    // At once: who has seen the work complete finds the group idle, and may destroy it.
    lock.lock();
    under_way_.fetch_sub(1, std::memory_order_release);
    std::exchange(queue_->current, nullptr)->complete(error);
  }
}

}  // namespace paceline
