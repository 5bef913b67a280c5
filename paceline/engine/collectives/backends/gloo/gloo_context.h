#pragma once

// What Gloo needs of Paceline: a store through which its ranks connect, and waits that end when a
// peer dies.

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/store.h>

#include "paceline/engine/collectives/backends/library.h"
#include "paceline/engine/transport/mesh.h"

namespace paceline {

// Paceline's store as Gloo's, for the time in which its ranks connect.
class GlooStore : public gloo::rendezvous::Store {
 public:
  // Requires: `context` outlives this object.
  explicit GlooStore(const LibraryContext& context) : context_(context) {}

  void set(const std::string& key, const std::vector<char>& data) override;
  // Both wait until the keys are there, a peer dies (its error) or the context's deadline passes.
  std::vector<char> get(const std::string& key) override;
  void wait(const std::vector<std::string>& keys) override;
  void wait(const std::vector<std::string>& keys,
            const std::chrono::milliseconds& timeout) override;

 private:
  const LibraryContext& context_;
};

// Watches the group's lifelines while this rank is inside Gloo. Gloo sees a dead peer only on its
// own connection to it, and loses the wake-up of a send that is half written; the watch notices
// within kSlice and ends the wait.
//
// One thread, which sleeps while nothing runs. Thread safety: Scopes come one at a time.
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
  std::mutex mutex_;  // guards no data: held to wake the thread, so that no wake-up is lost
  std::condition_variable_any woken_;
  std::jthread thread_;
};

// A Gloo context whose waits can all be ended from another thread.
//
// Gloo wakes the waits of a broken connection, except for two: for a send that is half written and
// for a receive that is half read. Such a buffer can be woken by itself, but an algorithm has
// buffers of its own, which its caller never sees. So the transport is wrapped: every buffer comes
// from here and is in a list while it exists.
//
// Thread safety: end_waits() may be called at any time, from any thread.
class AbortableContext : public gloo::rendezvous::Context {
 public:
  using gloo::rendezvous::Context::Context;

  // Connects all ranks over TCP from this address of the host. Errors: Gloo's exceptions.
  void connect(gloo::rendezvous::Store& store, const std::string& address);

  // Breaks all connections and makes every wait throw, also those that begin later. A second call
  // does no harm. Requires: connected.
  void end_waits();
};

}  // namespace paceline
