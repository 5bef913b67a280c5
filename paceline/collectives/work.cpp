#include "paceline/collectives/work.h"

#include "paceline/core/check.h"

namespace paceline {
namespace {

// Shares nothing with the thread that failed.
std::optional<Error> copy_of(const std::exception_ptr& error) {
  if (!error) return {};
  try {
    std::rethrow_exception(error);
  } catch (const Error& cause) {
    return Error(cause.code(), std::string(cause.what()));
  } catch (const std::exception& cause) {
    return Error(ErrorCode::kSystem, cause.what());
  }
}

}  // namespace

void Work::wait() {
  std::unique_lock lock(mutex_);
  completed_.wait(lock, [&] { return done_; });
  if (error_) throw Error(error_->code(), std::string(error_->what()));
}

void Work::wait(std::chrono::milliseconds timeout) {
  std::unique_lock lock(mutex_);
  if (!completed_.wait_for(lock, timeout, [&] { return done_; })) {
    fail(ErrorCode::kTimeout, "{} is not complete after {} ms", description_, timeout.count());
  }
  if (error_) throw Error(error_->code(), std::string(error_->what()));
}

bool Work::is_completed() const {
  const std::lock_guard lock(mutex_);
  return done_;
}

int Work::source_rank() const {
  const std::lock_guard lock(mutex_);
  return source_rank_;
}

void Work::complete(std::exception_ptr error, int source_rank) {
  auto copy = copy_of(error);
  {
    const std::lock_guard lock(mutex_);
    if (done_) return;
    done_ = true;
    error_ = std::move(copy);
    source_rank_ = source_rank;
  }
  completed_.notify_all();
}

}  // namespace paceline
