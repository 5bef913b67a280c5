#pragma once

// One channel to all remote ranks: a UCX worker with an endpoint for each of them. It sends and
// receives bytes as a socket does, without waiting.
//
// UCX moves bytes, both queued and arriving ones, only while one of its functions is called. The
// worker's own thread calls UCX whenever there are bytes to move, so a sender can continue with
// other work. The worker's methods call UCX as well, so that their callers wait less.
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
#include <ucp/api/ucp.h>
#include <uct/api/uct.h>

#include "paceline/engine/core/system/fd.h"

namespace paceline::ucx {

// Each function with the library that defines it: libucp, libucs or libuct.
// clang-format off
#define PACELINE_UCX_FUNCTIONS(FUNCTION) \
  FUNCTION(ucp, ucp_get_version_string) FUNCTION(ucp, ucp_config_read) \
  FUNCTION(ucp, ucp_config_release) FUNCTION(ucp, ucp_init_version) FUNCTION(ucp, ucp_cleanup) \
  FUNCTION(ucp, ucp_worker_create) FUNCTION(ucp, ucp_worker_destroy) \
  FUNCTION(ucp, ucp_worker_progress) FUNCTION(ucp, ucp_worker_get_efd) \
  FUNCTION(ucp, ucp_worker_arm) FUNCTION(ucp, ucp_worker_get_address) \
  FUNCTION(ucp, ucp_worker_release_address) FUNCTION(ucp, ucp_ep_create) \
  FUNCTION(ucp, ucp_ep_close_nbx) FUNCTION(ucp, ucp_stream_send_nbx) \
  FUNCTION(ucp, ucp_stream_recv_data_nb) FUNCTION(ucp, ucp_stream_data_release) \
  FUNCTION(ucp, ucp_request_check_status) FUNCTION(ucp, ucp_request_free) \
  FUNCTION(ucs, ucs_status_string) FUNCTION(uct, uct_query_components) \
  FUNCTION(uct, uct_release_component_list) FUNCTION(uct, uct_component_query) \
  FUNCTION(uct, uct_md_config_read) FUNCTION(uct, uct_config_release) \
  FUNCTION(uct, uct_md_open) FUNCTION(uct, uct_md_close) \
  FUNCTION(uct, uct_md_query_tl_resources) FUNCTION(uct, uct_release_tl_resource_list)
// clang-format on

// UCX's functions. The library is loaded when they are first needed, because linking it would bring
// its signal handlers into every program.
struct Api {
  // Loads the library once, and keeps it. Returns null and sets `why` if it is not available.
  static const Api* load(std::string* why);

// NOLINTNEXTLINE(bugprone-macro-parentheses): the macro declares the name
#define PACELINE_UCX_FUNCTION(library, name) decltype(&::name) name = nullptr;
  PACELINE_UCX_FUNCTIONS(PACELINE_UCX_FUNCTION)
#undef PACELINE_UCX_FUNCTION
};

// Throws Error(kSystem) with UCX's text unless `status` is UCS_OK.
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

  // The address at which others reach the worker.
  std::string address();
  void connect(int peer, const std::string& address);

  // Like the functions of Wire.
  ssize_t send(int peer, std::span<const std::byte> head, std::span<const std::byte> rest);
  ssize_t receive(int peer, std::span<std::byte> into);
  ssize_t peek(int peer, std::span<std::byte> into);
  // Whether one of `events` would succeed without EAGAIN.
  bool is_ready(int peer, short events);
  // A descriptor that is readable if something may have become ready since forget_news().
  int news() const { return news_.get(); }
  void forget_news();
  // Gives up all sends: memory that was passed to send() is no longer read. If a send is still
  // under way after a short wait, no peer can be reached afterwards.
  void give_up_sends();

 private:
  struct Link {
    ucp_ep_h endpoint = nullptr;
    bool has_failed = false;
    // The endpoint reports the peer's end, and can be closed during a send.
    bool reports_peer_failure = false;
    // The send under way: its request, and the number of its bytes.
    ucp_dt_iov_t parts[2];
    ucs_status_ptr_t request = nullptr;
    std::size_t sending = 0;
    // Bytes that UCX has received; the first `chunk_taken` of them were taken.
    std::byte* chunk = nullptr;
    std::size_t chunk_bytes = 0, chunk_taken = 0;
  };
  Link& link(int peer) { return *links_[static_cast<std::size_t>(peer)]; }
  void pump(const std::stop_token& stop);
  // The following functions require mutex_.
  bool progress();
  void post(Link& link, std::span<const std::byte> head, std::span<const std::byte> rest);
  void take_status(Link& link, ucs_status_ptr_t status);
  void advance(Link& link);
  bool fetch(Link& link);
  // Closes the chosen endpoints; bytes that were received and not taken are lost.
  template <class Choose>
  void close(const Choose& is_chosen);

  const Context& context_;
  const Api& api_;
  std::mutex mutex_;  // guards the members below, and UCX's worker
  ucp_worker_h worker_ = nullptr;
  // Set if abandoned sends remain, which end only when the worker is destroyed. The worker then
  // moves no more messages.
  bool is_dead_ = false;
  std::vector<std::unique_ptr<Link>> links_;  // at stable addresses

  int descriptor_ = -1;  // the worker's descriptor, on which the thread sleeps
  const Fd news_, stop_;
  std::jthread pump_;
};

}  // namespace paceline::ucx
