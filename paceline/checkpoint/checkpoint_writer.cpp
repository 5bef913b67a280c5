#include "paceline/checkpoint/checkpoint_writer.h"

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <system_error>

#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "paceline/core/copy.h"
#include "paceline/core/log.h"
#include "paceline/core/thread.h"

namespace paceline {
namespace {

constexpr std::size_t kHugePage = std::size_t{2} << 20;
constexpr int kLowerPriority = 10;

}  // namespace

void CheckpointWriter::Staging::reserve(std::size_t bytes) {
  if (bytes <= capacity_) return;
  memory_.reset();
  capacity_ = (bytes + kHugePage - 1) / kHugePage * kHugePage;
  memory_.reset(static_cast<std::byte*>(std::aligned_alloc(kHugePage, capacity_)));
  if (!memory_) {
    capacity_ = 0;
    throw Error(ErrorCode::kSystem,
                fmt::format("no memory for a copy of the checkpoint ({} bytes)", bytes));
  }
  // A hint: the first copy then faults in 512 times fewer pages.
  madvise(memory_.get(), capacity_, MADV_HUGEPAGE);
}

Snapshot CheckpointWriter::Staging::copy(const Snapshot& snapshot) {
  std::size_t bytes = 0;
  for (const NamedTensor& tensor : snapshot.tensors) bytes += tensor.bytes.size();
  reserve(bytes);
  Snapshot copied = snapshot;
  const bool past_caches = bytes > last_level_cache_bytes();
  std::byte* place = memory_.get();
  for (NamedTensor& tensor : copied.tensors) {
    const std::size_t size = tensor.bytes.size();
    if (past_caches) copy_past_caches(place, tensor.bytes.data(), size);
    if (!past_caches && size > 0) std::memcpy(place, tensor.bytes.data(), size);
    tensor.bytes = {place, size};
    place += size;
  }
  return copied;
}

CheckpointWriter::CheckpointWriter(CheckpointDirectory& directory,
                                   std::shared_ptr<Timeline> timeline)
    : directory_(directory), timeline_(std::move(timeline)) {}

CheckpointWriter::~CheckpointWriter() {
  std::unique_lock lock(mutex_);
  wait_until_idle(lock);
}

void CheckpointWriter::save(std::int64_t step, const Snapshot& snapshot) {
  take_turn(step);
  save_in_place(step, staging_.copy(snapshot));
}

void CheckpointWriter::take_turn(std::int64_t step) {
  std::unique_lock lock(mutex_);
  if (!step_) return;
  const auto begin = std::chrono::steady_clock::now();
  const std::int64_t before = *step_;
  wait_until_idle(lock);
  const std::chrono::duration<double> waited = std::chrono::steady_clock::now() - begin;
  log::warning(
      fmt::format("the checkpoint of step {} waited {:.2f} s for that of step {}: they come faster "
                  "than the disk can write them; save less often",
                  step, waited.count(), before));
}

void CheckpointWriter::save_in_place(std::int64_t step, Snapshot snapshot) {
  std::unique_lock lock(mutex_);
  wait_until_idle(lock);
  snapshot_ = std::move(snapshot);
  step_ = step;
  lock.unlock();
  // A thread for each save: one that waited at a lower priority would be the last to end of a
  // process that is killed, and give its memory back at that priority.
  try {
    thread_ = start_thread("paceline-ckpt", [this, step] { work(step); });
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
  wait_until_idle(lock);
  return std::exchange(error_, std::nullopt);
}

void CheckpointWriter::wait_until_idle(std::unique_lock<std::mutex>& lock) {
  changed_.wait(lock, [&] { return !step_; });
}

void CheckpointWriter::work(std::int64_t step) {
  setpriority(PRIO_PROCESS, static_cast<id_t>(gettid()), kLowerPriority);
  const auto error = write(step);
  {
    const std::lock_guard lock(mutex_);
    if (error && !error_) error_ = error;
    step_.reset();
  }
  changed_.notify_all();
}

std::optional<Error> CheckpointWriter::write(std::int64_t step) {
  const auto begin = Timeline::Clock::now();
  std::optional<Error> error;
  try {
    directory_.save(step, snapshot_);
  } catch (const Error& problem) {
    error = problem;
  } catch (const std::exception& problem) {
    error = Error(ErrorCode::kSystem, problem.what());
  }
  if (timeline_) timeline_->add(SpanKind::kCheckpoint, 0, step, begin, Timeline::Clock::now());
  if (error) {
    log::error(fmt::format("step {}: no checkpoint was written: {}", step, error->what()));
  }
  return error;
}

}  // namespace paceline
