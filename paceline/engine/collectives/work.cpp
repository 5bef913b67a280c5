#include "paceline/engine/collectives/work.h"

#include <utility>

#include "paceline/engine/collectives/flight/group_flight.h"
#include "paceline/engine/core/awake_clock.h"
#include "paceline/engine/core/check.h"
#include "paceline/engine/core/deadline.h"
#include "paceline/engine/core/wait_check.h"

namespace paceline {

namespace {

// Makes a copy that shares nothing with the thread that failed.
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

void Work::wait() {
  if (is_completed() && !error_ && !queued_) return;
  std::unique_lock lock(mutex_, std::defer_lock);
  await_end(Deadline::never(), lock);
  go_on(std::move(lock));
}

void Work::wait(std::chrono::milliseconds timeout) {
  std::unique_lock lock(mutex_, std::defer_lock);
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
    if (wait_awake(completed_, lock, slice, is_ready)) return true;
    lock.unlock();
  }
  help(end);
  lock.lock();
  return wait_awake(completed_, lock, end, is_ready);
}

void Work::help(Deadline limit) const {
  if (is_completed()) return;
  if (const auto progress = progress_.lock()) progress->progress(*this, limit);
}

void Work::throw_slow(std::chrono::milliseconds timeout, std::unique_lock<std::mutex> lock) const {
  std::string what = describe_();
  auto recorder = recorder_;
  if (begun_) {
    what = fmt::format("{}: {} in group {}", begun_->self, begun_->fingerprint.describe(),
                       begun_->group);
    recorder = begun_->recorder;
  }
  const std::string group = begun_ ? begun_->group : "";
  const std::string operation = begun_ ? std::string(name_of(begun_->fingerprint.op)) : "";
  lock.unlock();  // reading the records takes a while
  fail(ErrorCode::kTimeout, {.operation = operation, .group = group, .deadline = timeout},
       "{} is not complete after {} ms, and continues{}", what, timeout.count(),
       told_by_records(recorder.get(), group));
}

void Work::begin(const std::string& self, const std::string& group, const Fingerprint& fingerprint,
                 std::shared_ptr<FlightRecorder> recorder) {
  const std::lock_guard lock(mutex_);
  begun_ = Begun{self, group, fingerprint, std::move(recorder)};
}

void Work::go_on(std::unique_lock<std::mutex> lock) const {
  throw_error();
  const DeviceEvent done = queued_;
  if (!done) return;
  lock.unlock();
  order_->wait_for(done.get());
}

void Work::queue(DeviceEvent done) {
  {
    const std::lock_guard lock(mutex_);
    queued_ = std::move(done);
  }
  completed_.notify_all();
}

bool Work::is_queued() const {
  const std::lock_guard lock(mutex_);
  return queued_ != nullptr;
}

void Work::throw_error() const {
  if (!error_) return;
  if (recorder_) throw with_flight_records(*recorder_, *error_);
  throw error_->reworded(std::string(error_->what()));
}

// Records the end. Keeps the recorder only after a failure, because throw_error() needs it.
void Work::record() {
  if (!recorder_) return;
  recorder_->finish(ticket_, error_ ? std::optional(error_->code()) : std::nullopt);
  if (error_) {
    recorder_->note_failure(error_->what());
  } else {
    recorder_.reset();
  }
}

void Work::record_end(std::shared_ptr<FlightRecorder> recorder, FlightTicket ticket) {
  const std::lock_guard lock(mutex_);
  recorder_ = std::move(recorder);
  ticket_ = ticket;
  if (done_) record();
}

int Work::source_rank() const {
  if (is_completed()) return source_rank_;
  const std::lock_guard lock(mutex_);
  return source_rank_;
}

void Work::on_complete(std::function<void(const Error*)> then) {
  {
    const std::lock_guard lock(mutex_);
    if (!done_) return then_.push_back(std::move(then));
  }
  then(error_ ? &*error_ : nullptr);
}

void Work::complete(std::exception_ptr error, int source_rank) {
  auto copy = copy_of(error);
  std::vector<std::function<void(const Error*)>> then;
  {
    const std::lock_guard lock(mutex_);
    if (done_) return;
    error_ = std::move(copy);
    source_rank_ = source_rank;
    record();
    then.swap(then_);
    done_.store(true, std::memory_order_release);
  }
  completed_.notify_all();
  for (const auto& next : then) next(error_ ? &*error_ : nullptr);
}

}  // namespace paceline
