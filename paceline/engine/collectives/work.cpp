#include "paceline/engine/collectives/work.h"

#include <atomic>
#include <condition_variable>
#include <optional>
#include <utility>
#include <vector>

#include "paceline/engine/collectives/collective.h"
#include "paceline/engine/collectives/device_order.h"
#include "paceline/engine/collectives/flight/group_flight.h"
#include "paceline/engine/core/awake_clock.h"
#include "paceline/engine/core/check.h"
#include "paceline/engine/core/deadline.h"
#include "paceline/engine/core/error_text.h"

namespace paceline {

namespace {

// Makes a copy of the error that shares no memory with the thread that failed.
std::optional<Error> copy_of(const std::exception_ptr& error) {
  if (!error) return {};
  try {
    std::rethrow_exception(error);
  } catch (const Error& cause) {
    return cause.reworded(std::string(cause.what()));
  } catch (...) {
    return Error(ErrorCode::kSystem, describe_current_exception());
  }
}

}  // namespace

struct Work::State {
  struct Begun {
    std::string self, group;
    Fingerprint fingerprint;
    std::shared_ptr<FlightRecorder> recorder;
  };

  const std::function<std::string()> describe;
  const std::shared_ptr<const DeviceOrder> order;
  const std::weak_ptr<Progress> progress;
  mutable std::mutex mutex;  // guards the members below
  mutable std::condition_variable completed;
  std::optional<Begun> begun;
  // Stored last (release): a thread that loads true (acquire) may read error, queued and
  // source_rank without the lock, because they do not change any more.
  std::atomic<bool> done = false;
  // An event after the operation; null until the operation has been queued on the device.
  DeviceEvent queued;
  bool is_watched = false;
  std::shared_ptr<void> held;
  std::optional<Error> error;
  std::vector<std::function<void(const Error*)>> then;
  int source_rank = -1;
  std::shared_ptr<FlightRecorder> recorder;  // owners: the groups of this rank, and this object
  FlightTicket ticket;
};

Work::Work(std::function<std::string()> describe, std::shared_ptr<const DeviceOrder> order,
           std::weak_ptr<Progress> progress)
    : state_(new State{.describe = std::move(describe),
                       .order = std::move(order),
                       .progress = std::move(progress)}) {}

std::shared_ptr<Work> Work::completed() {
  // Never destroyed, because destructors of the program may still make calls.
  static const auto* const work = [] {
    auto* const made = new std::shared_ptr<Work>(
        std::make_shared<Work>([] { return std::string("an operation that has completed"); }));
    (*made)->complete(nullptr);
    return made;
  }();
  return *work;
}

Work::~Work() = default;

bool Work::is_completed() const { return state_->done.load(std::memory_order_acquire); }

std::string Work::description() const { return state_->describe(); }

bool Work::may_go_on() const { return state_->done || state_->queued != nullptr; }

void Work::wait() {
  if (is_completed() && !state_->error && !state_->queued) return;
  std::unique_lock lock(state_->mutex, std::defer_lock);
  await_end(Deadline::never(), lock);
  go_on(std::move(lock));
}

void Work::wait(std::chrono::milliseconds timeout) {
  std::unique_lock lock(state_->mutex, std::defer_lock);
  if (!await_end(Deadline::after(timeout), lock)) throw_slow(timeout, std::move(lock));
  go_on(std::move(lock));
}

// Waits until go_on() may be called, and locks the mutex. Returns false at `end`. A thread with a
// WaitCheck waits in slices, and checks before each of them.
bool Work::await_end(Deadline end, std::unique_lock<std::mutex>& lock) const {
  const auto is_ready = [&] { return may_go_on(); };
  while (WaitCheck::is_set()) {
    WaitCheck::run();
    const Deadline slice = Deadline::after(WaitCheck::kRound);
    if (slice.moment() >= end.moment()) break;
    help(slice);
    lock.lock();
    if (wait_awake(state_->completed, lock, slice, is_ready)) return true;
    lock.unlock();
  }
  help(end);
  lock.lock();
  return wait_awake(state_->completed, lock, end, is_ready);
}

void Work::help(Deadline limit) const {
  if (is_completed()) return;
  if (const auto progress = state_->progress.lock()) progress->progress(*this, limit);
}

void Work::throw_slow(std::chrono::milliseconds timeout, std::unique_lock<std::mutex> lock) const {
  std::string what = state_->describe();
  auto recorder = state_->recorder;
  if (state_->begun) {
    what = fmt::format("{}: {} in group {}", state_->begun->self,
                       state_->begun->fingerprint.describe(), state_->begun->group);
    recorder = state_->begun->recorder;
  }
  const std::string group = state_->begun ? state_->begun->group : "";
  const std::string operation =
      state_->begun ? std::string(name_of(state_->begun->fingerprint.op)) : "";
  lock.unlock();  // reading the records takes a while
  fail(ErrorCode::kTimeout, {.operation = operation, .group = group, .deadline = timeout},
       "{} is not complete after {} ms, and continues{}", what, timeout.count(),
       verdict_of_records(recorder.get(), group));
}

void Work::begin(const std::string& self, const std::string& group, const Fingerprint& fingerprint,
                 std::shared_ptr<FlightRecorder> recorder) {
  const std::lock_guard lock(state_->mutex);
  state_->begun = State::Begun{self, group, fingerprint, std::move(recorder)};
}

void Work::go_on(std::unique_lock<std::mutex> lock) const {
  throw_error();
  const DeviceEvent done = state_->queued;
  if (!done) return;
  lock.unlock();
  state_->order->wait_for(done.get());
}

void Work::queue(DeviceEvent done, bool is_watched, int source_rank) {
  {
    const std::lock_guard lock(state_->mutex);
    state_->queued = std::move(done);
    state_->is_watched = is_watched;
    state_->source_rank = source_rank;
  }
  state_->completed.notify_all();
}

bool Work::is_watched() const {
  if (!has_order()) return false;
  const std::lock_guard lock(state_->mutex);
  return state_->is_watched;
}

bool Work::has_order() const { return state_->order != nullptr; }

// The object that is not kept, the previous one or `object`, is dropped outside the lock.
void Work::hold(std::shared_ptr<void> object) {
  const std::lock_guard lock(state_->mutex);
  if (!state_->done) state_->held.swap(object);
}

bool Work::is_queued() const {
  const std::lock_guard lock(state_->mutex);
  return state_->queued != nullptr;
}

void Work::throw_error() const {
  if (!state_->error) return;
  if (state_->recorder) throw with_flight_records(*state_->recorder, *state_->error);
  throw state_->error->reworded(std::string(state_->error->what()));
}

// Records the end. Keeps the recorder only after a failure, because throw_error() needs it.
void Work::record() {
  if (!state_->recorder) return;
  state_->recorder->finish(state_->ticket,
                           state_->error ? std::optional(state_->error->code()) : std::nullopt);
  if (state_->error) {
    state_->recorder->note_failure(state_->error->what());
  } else {
    state_->recorder.reset();
  }
}

void Work::record_end(std::shared_ptr<FlightRecorder> recorder, FlightTicket ticket) {
  const std::lock_guard lock(state_->mutex);
  state_->recorder = std::move(recorder);
  state_->ticket = ticket;
  if (state_->done) record();
}

int Work::source_rank() const {
  if (is_completed()) return state_->source_rank;
  const std::lock_guard lock(state_->mutex);
  return state_->source_rank;
}

void Work::on_complete(std::function<void(const Error*)> then) {
  {
    const std::lock_guard lock(state_->mutex);
    if (!state_->done) return state_->then.push_back(std::move(then));
  }
  then(state_->error ? &*state_->error : nullptr);
}

void Work::complete(std::exception_ptr error, int source_rank) {
  if (end(std::move(error), source_rank)) call_back();
}

bool Work::end(std::exception_ptr error, int source_rank) {
  auto copy = copy_of(error);
  bool has_functions = false;
  if (state_->order != nullptr) {
    std::shared_ptr<void> held;
    {
      const std::lock_guard lock(state_->mutex);
      held.swap(state_->held);
    }
    // `held` is dropped before any thread learns of the completion.
  }
  {
    const std::lock_guard lock(state_->mutex);
    if (state_->done) return false;
    state_->error = std::move(copy);
    state_->source_rank = source_rank;
    record();
    has_functions = !state_->then.empty();
    state_->done.store(true, std::memory_order_release);
  }
  state_->completed.notify_all();
  return has_functions;
}

void Work::call_back() {
  std::vector<std::function<void(const Error*)>> then;
  {
    const std::lock_guard lock(state_->mutex);
    then.swap(state_->then);
  }
  for (const auto& next : then) next(state_->error ? &*state_->error : nullptr);
}

}  // namespace paceline
