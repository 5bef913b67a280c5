#include "paceline/files/checkpoint/checkpoint_writer.h"

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <system_error>
#include <utility>

#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "paceline/engine/core/awake_clock.h"
#include "paceline/engine/core/check.h"
#include "paceline/engine/core/error_text.h"
#include "paceline/engine/core/log.h"
#include "paceline/engine/core/system/thread.h"

namespace paceline {

namespace {

constexpr std::size_t kHugePage = std::size_t{2} << 20;
// There is no warning while saves have waited for earlier saves for less than this time, or for
// less than this share of the time since the first save.
constexpr std::chrono::duration<double> kBearableDelay{0.1};
constexpr double kBearableShare = 0.05;

}  // namespace

std::byte* StagingMemory::reserve(std::size_t bytes) {
  if (bytes <= capacity_) return memory_.get();
  memory_.reset();
  capacity_ = 0;
  const std::size_t capacity = (bytes + kHugePage - 1) / kHugePage * kHugePage;
  memory_.reset(static_cast<std::byte*>(std::aligned_alloc(kHugePage, capacity)));
  if (memory_) {
    // A hint: with huge pages there are 512 times fewer pages to populate and to translate.
    madvise(memory_.get(), capacity, MADV_HUGEPAGE);
    // Populating the pages reports a lack of memory here, and not as a signal later. Linux before
    // 5.14 does not support that (EINVAL); there the first copy allocates the pages.
    if (madvise(memory_.get(), capacity, MADV_POPULATE_WRITE) != 0 && errno != EINVAL)
      memory_.reset();
  }
  if (!memory_)
    fail(ErrorCode::kSystem, "no memory for a copy of the checkpoint ({} bytes)", bytes);
  capacity_ = capacity;
  return memory_.get();
}

namespace {

constexpr int kStepsBelow = 10;  // added to the nice value

}  // namespace

CheckpointWriter::CheckpointWriter(std::shared_ptr<Timeline> timeline,
                                   std::chrono::milliseconds patience)
    : timeline_(std::move(timeline)), disk_timeout_(patience) {}

CheckpointWriter::~CheckpointWriter() {
  std::unique_lock lock(mutex_);
  const auto wait = has_given_up_ ? std::chrono::milliseconds(0) : disk_timeout_;
  if (wait_until_idle(lock, Deadline::after(wait))) return;
  log::error(fmt::format("{}; this process ends without it", overdue().what()));
  std::_Exit(1);
}

// Requires mutex_, and a current save.
Error CheckpointWriter::overdue() const {
  return Error(ErrorCode::kTimeout,
               fmt::format("writing the checkpoint of step {} has taken more than {} s", *step_,
                           std::chrono::ceil<std::chrono::seconds>(disk_timeout_).count()));
}

bool CheckpointWriter::is_busy() const {
  const std::lock_guard lock(mutex_);
  return step_.has_value();
}

bool CheckpointWriter::take_turn(std::optional<std::int64_t> step, Deadline deadline) {
  std::unique_lock lock(mutex_);
  if (!step_) return true;
  const auto begin = std::chrono::steady_clock::now();
  const std::int64_t before = *step_;
  const bool is_idle = wait_until_idle(lock, deadline);
  if (!step) return is_idle;
  const auto now = std::chrono::steady_clock::now();
  waited_ += now - begin;
  const std::chrono::duration<double> whole = now - first_start_;
  if (has_warned_ || waited_ < kBearableDelay || waited_ < kBearableShare * whole) return is_idle;
  has_warned_ = true;
  log::warning(
      fmt::format("checkpoints have delayed the training by {:.2f} of {:.2f} s; the one of step {} "
                  "had to wait for the one of step {}: the disk cannot write them as often as "
                  "they are made; save less often (reported once)",
                  waited_.count(), whole.count(), *step, before));
  return is_idle;
}

void CheckpointWriter::refuse(std::int64_t step, const Error& error) {
  const std::lock_guard lock(mutex_);
  keep(step, error);
}

void CheckpointWriter::start(std::int64_t step, std::function<void()> write) {
  std::unique_lock lock(mutex_);
  if (!wait_until_idle(lock, Deadline::after(disk_timeout_))) throw overdue();
  if (first_start_ == std::chrono::steady_clock::time_point()) {
    first_start_ = std::chrono::steady_clock::now();
  }
  step_ = step;
  lock.unlock();
  const auto work = [this, step, write = std::move(write)] {
    lower_priority();
    const auto begin = Timeline::Clock::now();
    std::optional<Error> error;
    try {
      write();
    } catch (const Error& problem) {
      error = problem;
    } catch (...) {
      error = Error(ErrorCode::kSystem, describe_current_exception());
    }
    end(step, begin, error);
  };
  // Each save has a thread of its own. When a process is killed, a thread that waited at a lower
  // priority would end last, and release the process's memory at that priority.
  try {
    thread_ = start_thread("paceline-ckpt", work);
  } catch (const std::system_error& problem) {
    lock.lock();
    step_.reset();
    throw Error(ErrorCode::kSystem, fmt::format("starting the thread that writes the checkpoint of "
                                                "step {}: {}",
                                                step, problem.what()));
  }
}

std::optional<Error> CheckpointWriter::take_error() {
  const std::lock_guard lock(mutex_);
  return std::exchange(error_, std::nullopt);
}

std::optional<Error> CheckpointWriter::finish() {
  std::unique_lock lock(mutex_);
  has_given_up_ = !wait_until_idle(lock, Deadline::after(disk_timeout_));
  if (has_given_up_) return overdue();
  return std::exchange(error_, std::nullopt);
}

bool CheckpointWriter::wait_until_idle(std::unique_lock<std::mutex>& lock, Deadline deadline) {
  is_awaited_ = true;
  if (writer_ != 0)
    setpriority(PRIO_PROCESS, static_cast<id_t>(writer_), getpriority(PRIO_PROCESS, 0));
  const bool is_idle = wait_awake(changed_, lock, deadline, [&] { return !step_; });
  is_awaited_ = false;
  return is_idle;
}

// Called on the thread that writes: lowers its priority, unless another thread already waits for
// it.
void CheckpointWriter::lower_priority() {
  const std::lock_guard lock(mutex_);
  if (is_awaited_) return;
  writer_ = gettid();
  setpriority(PRIO_PROCESS, static_cast<id_t>(writer_), getpriority(PRIO_PROCESS, 0) + kStepsBelow);
}

// Requires mutex_.
void CheckpointWriter::keep(std::int64_t step, const Error& error) {
  log::error(fmt::format("step {}: no checkpoint was written: {}", step, error.what()));
  if (!error_) error_ = error;
}

// Called on the thread that writes, when it has finished.
void CheckpointWriter::end(std::int64_t step, Timeline::Clock::time_point begin,
                           const std::optional<Error>& error) {
  if (timeline_) timeline_->add(SpanKind::kCheckpoint, 0, step, begin, Timeline::Clock::now());
  {
    const std::lock_guard lock(mutex_);
    if (error) keep(step, *error);
    step_.reset();
    writer_ = 0;
  }
  changed_.notify_all();
}

}  // namespace paceline
