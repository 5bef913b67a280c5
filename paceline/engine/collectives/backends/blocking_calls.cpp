#include "paceline/engine/collectives/backends/blocking_calls.h"

#include <condition_variable>
#include <exception>
#include <mutex>
#include <utility>

#include <pthread.h>

#include "paceline/engine/collectives/backends/broken_pipe_guard.h"
#include "paceline/engine/collectives/backends/poll_until.h"

namespace paceline {
namespace {

// How long a wait may go without a look at the deadline and at the peers.
constexpr std::chrono::milliseconds kLook{2};

}  // namespace

struct BlockingCalls::Exchange {
  std::mutex mutex;  // of all that follows
  std::condition_variable changed;
  std::function<void()> call;  // that is to be carried out; empty: none
  bool is_done = false;        // with the last one
  bool ends = false;           // there will be no other
  std::exception_ptr error;    // of the last one

  void serve() {
    const BrokenPipeGuard guard;
    std::unique_lock lock(mutex);
    for (;;) {
      changed.wait(lock, [&] { return call || ends; });
      if (!call) return;
      lock.unlock();
      std::exception_ptr thrown;
      try {
        call();
      } catch (...) {
        thrown = std::current_exception();
      }
      lock.lock();
      call = nullptr;
      error = thrown;
      is_done = true;
      changed.notify_all();
    }
  }

  void begin(std::function<void()> next) {
    const std::lock_guard lock(mutex);
    call = std::move(next);
    error = nullptr;
    is_done = false;
    changed.notify_all();
  }

  bool is_done_within(std::chrono::nanoseconds time) {
    std::unique_lock lock(mutex);
    return changed.wait_for(lock, time, [&] { return is_done; });
  }
};

BlockingCalls::BlockingCalls(const std::string& thread_name)
    : exchange_(std::make_shared<Exchange>()), thread_([exchange = exchange_, thread_name] {
        pthread_setname_np(pthread_self(), thread_name.c_str());
        exchange->serve();
      }) {}

BlockingCalls::~BlockingCalls() {
  if (!owner_.is_this()) {  // a child of fork() has no such thread
    thread_.detach();
    return;
  }
  {
    const std::lock_guard lock(exchange_->mutex);
    exchange_->ends = true;
  }
  exchange_->changed.notify_all();
  if (given_up_) {
    thread_.detach();
  } else {
    thread_.join();
  }
}

void BlockingCalls::run(std::function<void()> call, Mesh& mesh, Deadline deadline,
                        const std::string& what) {
  exchange_->begin(std::move(call));
  try {
    poll_until([&] { return exchange_->is_done_within(kLook); }, mesh, deadline, what);
  } catch (...) {
    given_up_ = true;
    throw;
  }
  rethrow();
}

bool BlockingCalls::run_until(Deadline deadline, std::function<void()> call) {
  exchange_->begin(std::move(call));
  given_up_ = !exchange_->is_done_within(deadline.remaining());
  if (!given_up_) rethrow();
  return !given_up_;
}

bool BlockingCalls::catch_up(Deadline deadline) {
  if (!given_up_) return true;
  given_up_ = !exchange_->is_done_within(deadline.remaining());
  return !given_up_;
}

void BlockingCalls::rethrow() {
  if (exchange_->error) std::rethrow_exception(exchange_->error);
}

}  // namespace paceline
