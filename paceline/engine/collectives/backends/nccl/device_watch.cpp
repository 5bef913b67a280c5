#include "paceline/engine/collectives/backends/nccl/device_watch.h"

#include <atomic>
#include <condition_variable>
#include <exception>
#include <list>
#include <mutex>
#include <optional>
#include <utility>

#include "paceline/engine/core/awake_clock.h"
#include "paceline/engine/core/check.h"
#include "paceline/engine/core/system/host.h"
#include "paceline/engine/core/system/thread.h"

namespace paceline {
namespace {

using Clock = std::chrono::steady_clock;

// The intervals between polls of the events: kShortNap while operations end one after another,
// kLongNap once none has ended for kShortWait.
constexpr std::chrono::microseconds kShortNap{50};
constexpr std::chrono::microseconds kLongNap{500};
constexpr std::chrono::milliseconds kShortWait{5};
// How often the thread looks for errors that no event reports.
constexpr std::chrono::milliseconds kFailureCheckInterval{2};

}  // namespace

struct DeviceWatch::State {
  explicit State(WatchHooks given) : hooks(std::move(given)) {}

  const WatchHooks hooks;
  const OwnerProcess owner;
  mutable std::mutex mutex;  // guards the members below
  std::condition_variable changed;
  std::list<WatchedOperation> watched;
  std::optional<Error> failure;
  bool ends = false;
  std::jthread thread;
  bool is_gone = false;  // the watch was destroyed on its own thread, which alone uses this flag

  // Completes operations without holding the mutex, because completing them runs the program's
  // callbacks, which may also invalidate the hooks.
  void finish(std::list<WatchedOperation> ended, const std::optional<Error>& cause) {
    for (WatchedOperation& operation : ended) {
      std::exception_ptr error;
      if (cause) error = std::make_exception_ptr(error_of(operation, *cause));
      const WorkPtr work = std::move(operation.work);
      operation.done.reset();
      work->complete(error, operation.source_rank);
    }
  }

  Error error_of(const WatchedOperation& operation, const Error& cause) const {
    const std::string text = cause.what();
    const bool is_named = text.find(operation.what) != std::string::npos;
    return cause
        .reworded(is_named ? text
                           : fmt::format("{}; the device had not finished {} of group {}", text,
                                         operation.what, hooks.group))
        .with({.operation = operation.name, .group = hooks.group, .ranks = {}, .deadline = {}});
  }

  // Removes and returns the operations that the device has finished. Throws if an unfinished one
  // has failed or has passed its deadline.
  std::list<WatchedOperation> take_finished() {
    std::list<WatchedOperation> ended;
    const std::lock_guard lock(mutex);
    for (auto at = watched.begin(); at != watched.end();) {
      const auto next = std::next(at);
      bool is_done = false;
      try {
        is_done = hooks.is_done(at->done.get());
      } catch (const Error&) {
        if (ended.empty()) throw;
        break;  // finished operations complete first; the next look throws the error again
      }
      if (is_done) {
        ended.splice(ended.end(), watched, at);
      } else if (put_off(at->deadline).expired()) {
        if (!ended.empty()) break;
        const auto timeout = at->deadline.timeout().value_or(std::chrono::milliseconds());
        fail(ErrorCode::kTimeout,
             {.operation = at->name, .group = hooks.group, .ranks = {}, .deadline = timeout},
             "{}: {} of group {} timed out after {:.1f} s{}; a rank's earlier work on the device "
             "may be late, or a rank's device may hang (nvidia-smi)",
             hooks.self, at->what, hooks.group, std::chrono::duration<double>(timeout).count(),
             at->if_late.empty()
                 ? ", though every rank had begun it: the device has not finished it"
                 : ": " + at->if_late);
      }
      at = next;
    }
    return ended;
  }

  void fail_all(const Error& error) {
    const Error cause = hooks.fail(error);
    std::list<WatchedOperation> ended;
    {
      const std::lock_guard lock(mutex);
      failure = cause;
      ended.swap(watched);
    }
    finish(std::move(ended), cause);
  }

  // Watches until no operation is left, or until the watch was destroyed on this thread.
  void watch_all() {
    Vigil vigil;
    auto last_end = Clock::now();
    auto last_look = last_end;
    while (!is_gone) {
      vigil.look();
      try {
        auto ended = take_finished();
        if (!ended.empty()) {
          last_end = Clock::now();
          finish(std::move(ended), {});
          continue;
        }
        const auto now = Clock::now();
        if (now - last_look > kFailureCheckInterval) {
          last_look = now;
          hooks.check_failures();
        }
      } catch (const Error& error) {
        fail_all(error);
        continue;
      }
      std::unique_lock lock(mutex);
      if (watched.empty()) return;
      const bool is_short = Clock::now() - last_end < kShortWait;
      changed.wait_for(lock, is_short ? kShortNap : kLongNap);
    }
  }

  void run() {
    hooks.begin();
    std::unique_lock lock(mutex);
    for (;;) {
      changed.wait(lock, [&] { return ends || !watched.empty(); });
      if (watched.empty()) return;
      lock.unlock();
      watch_all();
      if (is_gone) return;
      lock.lock();
    }
  }
};

DeviceWatch::DeviceWatch(WatchHooks hooks) : state_(std::make_shared<State>(std::move(hooks))) {}

DeviceWatch::~DeviceWatch() {
  State& state = *state_;
  if (!state.owner.is_this()) {  // a child of fork() has no such thread
    if (state.thread.joinable()) state.thread.detach();
    return;
  }
  if (!state.thread.joinable()) return;
  if (state.thread.get_id() == std::this_thread::get_id()) {
    state.watch_all();
    state.is_gone = true;
    state.thread.detach();
    return;
  }
  {
    const std::lock_guard lock(state.mutex);
    state.ends = true;
  }
  state.changed.notify_all();
  state.thread.join();
}

void DeviceWatch::add(WatchedOperation operation) {
  std::unique_lock lock(state_->mutex);
  if (const auto failure = state_->failure) {
    lock.unlock();
    operation.work->complete(std::make_exception_ptr(state_->error_of(operation, *failure)));
    return;
  }
  state_->watched.push_back(std::move(operation));
  if (!state_->thread.joinable()) {
    state_->thread = start_thread("paceline-gpu", [state = state_] { state->run(); });
  }
  lock.unlock();
  state_->changed.notify_all();
}

std::size_t DeviceWatch::count() const {
  const std::lock_guard lock(state_->mutex);
  return state_->watched.size();
}

bool DeviceWatch::has_failed() const {
  const std::lock_guard lock(state_->mutex);
  return state_->failure.has_value();
}

}  // namespace paceline
