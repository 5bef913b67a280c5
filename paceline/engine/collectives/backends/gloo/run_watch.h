#pragma once

// Watches the group's lifelines while this rank is inside Gloo. Gloo sees a dead peer only on its
// own connection to it, and loses the wake-up of a send that is half written; the watch notices
// within kSlice and ends the wait.
//
// One thread, which sleeps while nothing runs. Thread safety: Scopes come one at a time.

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

#include "paceline/engine/transport/mesh.h"

namespace paceline {

class RunWatch {
 public:
  static constexpr std::chrono::milliseconds kSlice{20};

  // `end_waits` is called from the watch's thread, again and again until the Scope ends. Requires:
  // `mesh` outlives this object.
  RunWatch(Mesh& mesh, std::function<void()> end_waits);

  class Scope {
   public:
    explicit Scope(RunWatch& watch) : watch_(watch) { watch_.begin(); }
    ~Scope() { watch_.running_.store(false); }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    RunWatch& watch_;
  };

 private:
  void begin();
  void watch(const std::stop_token& stop);
  bool group_failed();

  Mesh& mesh_;
  const std::function<void()> end_waits_;
  std::atomic<bool> running_{false};
  std::atomic<bool> parked_{false};
  std::mutex mutex_;  // of woken_
  std::condition_variable_any woken_;
  std::jthread thread_;
};

}  // namespace paceline
