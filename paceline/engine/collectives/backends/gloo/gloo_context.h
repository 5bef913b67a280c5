#pragma once

// The parts that Gloo needs from Paceline: a store through which its ranks connect, and waits that
// end when a peer dies.

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

// Presents Paceline's store as a Gloo store while Gloo's ranks connect.
class GlooStore : public gloo::rendezvous::Store {
 public:
  // Requires: `context` outlives this object.
  explicit GlooStore(const LibraryContext& context) : context_(context) {}

  void set(const std::string& key, const std::vector<char>& data) override;
  // get() and wait() block until the keys exist. If a peer dies meanwhile, they throw the error
  // that reports its death; at the context's deadline they throw Error(kTimeout).
  std::vector<char> get(const std::string& key) override;
  void wait(const std::vector<std::string>& keys) override;
  void wait(const std::vector<std::string>& keys,
            const std::chrono::milliseconds& timeout) override;

 private:
  const LibraryContext& context_;
};

// Watches the group's lifelines while this rank is inside Gloo. Gloo notices a dead peer only on
// its own connection to that peer, and never wakes up from a half-written send; the watch notices
// the death within kSlice and ends the wait.
//
// The watch has one thread, which sleeps once no call has run for a second. Thread safety: at most
// one Scope may exist at a time.
class RunWatch {
 public:
  static constexpr std::chrono::milliseconds kSlice{20};

  // Once the group has failed, the watch's thread calls `end_waits` again and again until the Scope
  // ends. Requires: `mesh` outlives this object.
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

// A Gloo context whose waits another thread can end.
//
// When a connection breaks, Gloo ends the waits on it, except for those on a half-written send and
// a half-read receive. Such a wait can be ended through its buffer, but Gloo's algorithms have
// buffers of their own, which their callers never see. So this class wraps Gloo's transport, which
// creates every buffer, and keeps a list of the existing buffers.
//
// Thread safety: once connected, end_waits() may be called at any time, from any thread.
class AbortableContext : public gloo::rendezvous::Context {
 public:
  using gloo::rendezvous::Context::Context;

  // Connects this rank to all others over TCP, from this host's `address`. Errors: Gloo's
  // exceptions.
  void connect(gloo::rendezvous::Store& store, const std::string& address);

  // Breaks all connections and makes every wait throw, including later ones. May be called
  // repeatedly. Requires: connect() has returned.
  void end_waits();
};

}  // namespace paceline
