#include "paceline/engine/collectives/backends/gloo/run_watch.h"

#include "paceline/engine/core/thread.h"

namespace paceline {
namespace {

// How long it keeps looking after a run, so that the next one need not wake it.
constexpr int kIdleSlices = 50;

}  // namespace

RunWatch::RunWatch(Mesh& mesh, std::function<void()> end_waits)
    : mesh_(mesh),
      end_waits_(std::move(end_waits)),
      thread_(start_thread("paceline-watch", [this](std::stop_token stop) { watch(stop); })) {}

void RunWatch::begin() {
  running_.store(true);
  if (!parked_.load()) return;
  const std::lock_guard lock(mutex_);
  woken_.notify_all();
}

void RunWatch::watch(const std::stop_token& stop) {
  int idle = 0;
  std::unique_lock lock(mutex_);
  while (!stop.stop_requested()) {
    if (idle > kIdleSlices) {
      parked_.store(true);
      woken_.wait(lock, stop, [&] { return running_.load(); });
      parked_.store(false);
      idle = 0;
    }
    woken_.wait_for(lock, stop, kSlice, [] { return false; });
    idle = running_.load() ? 0 : idle + 1;
    if (idle > 0) continue;
    lock.unlock();
    if (group_failed()) end_waits_();
    lock.lock();
  }
}

bool RunWatch::group_failed() {
  try {
    mesh_.throw_if_failed();
    return false;
  } catch (const Error&) {  // the run's caller throws it
    return true;
  }
}

}  // namespace paceline
