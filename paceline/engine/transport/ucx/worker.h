#pragma once

// One channel to all remote ranks: a UCX worker with an endpoint for each of them. Bytes are taken
// and given as a socket does, without waiting.
//
// UCX moves nothing unless it is called, neither what it has queued nor what arrives. A thread of
// the worker's own does, whenever there is something to move, so a sender can continue with its own
// work; the callers do as well, which is quicker.
//
// Thread safety: all methods may be called from any thread.

#include <cstddef>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include <sys/types.h>

#include "paceline/engine/core/system/fd.h"
#include "paceline/engine/transport/ucx/api.h"

namespace paceline::ucx {

// Error(kSystem) with UCX's words unless `status` is UCS_OK.
void require_ok(const Api& api, ucs_status_t status, const char* what);

class Context {
 public:
  explicit Context(const Api& api);
  ~Context();
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;
  const Api& api() const { return api_; }
  ucp_context_h get() const { return context_; }

 private:
  const Api& api_;
  ucp_context_h context_ = nullptr;
};

class Worker {
 public:
  // Requires: `context` outlives this object.
  Worker(const Context& context, int world_size);
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  // The address by which others reach it.
  std::string address();
  void connect(int peer, const std::string& address);

  // As Wire says.
  ssize_t send(int peer, std::span<const std::byte> head, std::span<const std::byte> rest);
  ssize_t receive(int peer, std::span<std::byte> into);
  ssize_t peek(int peer, std::span<std::byte> into);
  // Whether any of `events` would not get EAGAIN.
  bool is_ready(int peer, short events);
  // Readable when something may have become ready since forget_news().
  int news() const { return news_.get(); }
  void forget_news();
  // Nothing that was passed to send() is read any more. A peer that something was on its way to is
  // reached no more.
  void give_up_sends();

 private:
  struct Link {
    ucp_ep_h endpoint = nullptr;
    bool has_failed = false;
    bool tells_of_failure = false;  // of the peer's end, and can be ended during a send
    // What is being sent: the request under way, and how many bytes it is for.
    ucp_dt_iov_t parts[2];
    ucs_status_ptr_t request = nullptr;
    std::size_t sending = 0;
    // What UCX has received, as far as it is not taken.
    std::byte* chunk = nullptr;
    std::size_t chunk_bytes = 0, chunk_taken = 0;
  };
  Link& link(int peer) { return *links_[static_cast<std::size_t>(peer)]; }
  void pump(const std::stop_token& stop);
  // All require mutex_.
  bool progress();
  void post(Link& link, std::span<const std::byte> head, std::span<const std::byte> rest);
  void take_status(Link& link, ucs_status_ptr_t status);
  void advance(Link& link);
  bool fetch(Link& link);
  // Bytes that were received and not taken are lost.
  template <class Choose>
  void close(const Choose& is_chosen);

  const Context& context_;
  const Api& api_;
  std::mutex mutex_;  // guards what is below, and UCX's worker
  ucp_worker_h worker_ = nullptr;
  bool is_dead_ = false;                      // sends were given up that only the worker's end ends
  std::vector<std::unique_ptr<Link>> links_;  // at places that stay

  int descriptor_ = -1;  // the worker's: the thread sleeps on it
  const Fd news_, stop_;
  std::jthread pump_;
};

}  // namespace paceline::ucx
