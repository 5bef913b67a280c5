#include "paceline/engine/transport/ucx/worker.h"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include <dlfcn.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "paceline/engine/core/check.h"
#include "paceline/engine/core/deadline.h"
#include "paceline/engine/core/error_text.h"
#include "paceline/engine/core/system/io.h"
#include "paceline/engine/core/system/thread.h"

namespace paceline::ucx {
namespace {

using namespace std::chrono_literals;

// The most bytes that are given to UCX at once. The rest of a message waits until these have been
// sent, so that its sender sees progress.
constexpr std::size_t kMaxAtOnce = 1 << 20;
constexpr auto kCloseLimit = 1s;
constexpr auto kLastWordsLimit = 20ms;
constexpr auto kNap = 50us;

Fd make_bell() {
  Fd bell(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!bell) throw system_error("making a descriptor for UCX's thread");
  return bell;
}

ssize_t with_errno(int error) {
  errno = error;
  return -1;
}

template <class Function>
bool find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  return function != nullptr;
}

struct Loaded {
  Api api;
  std::string why;  // why UCX is not available; empty if it is loaded
  Loaded();
};

// Sets variables that UCX reads when it is loaded, unless the user has set them: this library
// reports UCX's errors itself, and leaves crashes to the crash reporter.
//
// To notice freed memory, UCX patches the C library's mmap(), brk() and others with jumps, and
// tests the jumps whenever a context is made. For brk(), it asks the kernel for the end of the heap
// and stores the answer in the C library's variable, without malloc()'s lock. If another thread's
// malloc() has moved the end in between, the next malloc() that moves it finds its heap cut ("break
// adjusted to free malloc space") and aborts the process. Only the cache of registrations for RDMA
// devices needs to notice freed memory.
void set_defaults() {
  constexpr int kKeepTheUsers = 0;
  setenv("UCX_LOG_LEVEL", "fatal", kKeepTheUsers);
  setenv("UCX_HANDLE_ERRORS", "none", kKeepTheUsers);
  setenv("UCX_MEM_EVENTS", "n", kKeepTheUsers);
}

Loaded::Loaded() {
  set_defaults();
  void* const ucp = dlopen("libucp.so.0", RTLD_NOW | RTLD_LOCAL);
  void* const uct = dlopen("libuct.so.0", RTLD_NOW | RTLD_LOCAL);
  void* const ucs = dlopen("libucs.so.0", RTLD_NOW | RTLD_LOCAL);
  if (ucp == nullptr || uct == nullptr || ucs == nullptr) {
    const char* error = dlerror();
    why = error != nullptr ? error : "libucp.so.0 was not found";
    return;
  }
#define PACELINE_FIND(library, name) \
  if (!find(library, #name, api.name)) why = "lib" #library ".so.0 has no " #name;
  PACELINE_UCX_FUNCTIONS(PACELINE_FIND)
#undef PACELINE_FIND
}

}  // namespace

const Api* Api::load(std::string* why) {
  // Never destroyed, because the library stays loaded.
  static const Loaded* const loaded = new Loaded;
  if (why != nullptr) *why = loaded->why;
  return loaded->why.empty() ? &loaded->api : nullptr;
}

void require_ok(const Api& api, ucs_status_t status, const char* what) {
  if (status == UCS_OK) return;
  fail(ErrorCode::kSystem, "UCX: {} failed: {}", what, api.ucs_status_string(status));
}

Context::Context(const Api& api) : api_(api) {
  ucp_config_t* config = nullptr;
  require_ok(api_, api_.ucp_config_read(nullptr, nullptr, &config), "reading the UCX_ variables");
  ucp_params_t params{};
  params.field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_MT_WORKERS_SHARED;
  params.features = UCP_FEATURE_STREAM | UCP_FEATURE_WAKEUP;
  params.mt_workers_shared = 1;
  const ucs_status_t status =
      api_.ucp_init_version(UCP_API_MAJOR, UCP_API_MINOR, &params, config, &context_);
  api_.ucp_config_release(config);
  require_ok(api_, status, "looking for transports (UCX_TLS, UCX_NET_DEVICES)");
}

Context::~Context() { api_.ucp_cleanup(context_); }

Worker::Worker(const Context& context, int world_size)
    : context_(context), api_(context.api()), news_(make_bell()), stop_(make_bell()) {
  for (int peer = 0; peer < world_size; ++peer) links_.push_back(std::make_unique<Link>());
  ucp_worker_params_t params{};
  params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  params.thread_mode = UCS_THREAD_MODE_SERIALIZED;
  require_ok(api_, api_.ucp_worker_create(context_.get(), &params, &worker_), "making a worker");
  const ucs_status_t status = api_.ucp_worker_get_efd(worker_, &descriptor_);
  if (status != UCS_OK) api_.ucp_worker_destroy(worker_);
  require_ok(api_, status, "making a worker's descriptor");
  pump_ = start_thread("paceline-ucx", [this](const std::stop_token& stop) { pump(stop); });
}

Worker::~Worker() {
  pump_.request_stop();
  ring(stop_.get());
  pump_.join();
  close([](const Link&) { return true; });
  api_.ucp_worker_destroy(worker_);
}

std::string Worker::address() {
  const std::lock_guard lock(mutex_);
  ucp_address_t* address = nullptr;
  std::size_t bytes = 0;
  require_ok(api_, api_.ucp_worker_get_address(worker_, &address, &bytes), "finding its address");
  std::string text(reinterpret_cast<const char*>(address), bytes);
  api_.ucp_worker_release_address(worker_, address);
  return text;
}

// Connects to a peer. If a transport cannot report a peer's end (UCX's shared memory), the control
// channel reports it. Error handling is tried anew for each peer: UCX numbers the endpoints
// between two workers, including refused endpoints, and joins endpoints of the same number, so an
// attempt must fail at both ends or at neither.
void Worker::connect(int peer, const std::string& address) {
  const std::lock_guard lock(mutex_);
  Link& link = this->link(peer);
  ucp_ep_params_t params{};
  params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                      UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.address = reinterpret_cast<const ucp_address_t*>(address.data());
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler.cb = [](void* link, ucp_ep_h, ucs_status_t) {
    static_cast<Link*>(link)->has_failed = true;
  };
  params.err_handler.arg = &link;
  ucs_status_t status = api_.ucp_ep_create(worker_, &params, &link.endpoint);
  if (status == UCS_ERR_UNREACHABLE || status == UCS_ERR_UNSUPPORTED) {
    params.err_mode = UCP_ERR_HANDLING_MODE_NONE;
    status = api_.ucp_ep_create(worker_, &params, &link.endpoint);
  }
  link.reports_peer_failure = params.err_mode == UCP_ERR_HANDLING_MODE_PEER;
  require_ok(api_, status, "reaching another rank's worker");
}

// Calls UCX until it has nothing left to do; returns whether anything moved.
bool Worker::progress() {
  bool moved = false;
  while (!is_dead_ && api_.ucp_worker_progress(worker_) != 0) moved = true;
  return moved;
}

// The worker's thread. The descriptor becomes readable for events after the worker was armed. UCX
// does not arm a worker that has work left. That work may depend on another rank, so this thread
// then sleeps briefly and tries again.
void Worker::pump(const std::stop_token& stop) {
  while (!stop.stop_requested()) {
    bool is_dead = false;
    bool is_armed = false;
    {
      const std::lock_guard lock(mutex_);
      if (progress()) ring(news_.get());
      is_dead = is_dead_;
      is_armed = !is_dead && api_.ucp_worker_arm(worker_) == UCS_OK;
    }
    pollfd entries[2] = {{stop_.get(), POLLIN, 0}, {descriptor_, POLLIN, 0}};
    if (is_dead || is_armed) {
      poll_for(std::span(entries).first(is_dead ? 1 : 2), -1ms);
    } else {
      std::this_thread::sleep_for(kNap);
    }
  }
}

void Worker::forget_news() {
  std::uint64_t count = 0;
  read_record(news_.get(), count);
}

void Worker::take_status(Link& link, ucs_status_ptr_t status) {
  link.request = UCS_PTR_IS_PTR(status) ? status : nullptr;
  if (UCS_PTR_IS_ERR(status)) link.has_failed = true;
}

void Worker::post(Link& link, std::span<const std::byte> head, std::span<const std::byte> rest) {
  rest = rest.first(std::min(rest.size(), kMaxAtOnce));
  std::size_t count = 0;
  for (const auto& bytes : {head, rest}) {
    if (bytes.empty()) continue;
    link.parts[count++] = {const_cast<std::byte*>(bytes.data()), bytes.size()};
  }
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_DATATYPE;
  param.datatype = UCP_DATATYPE_IOV;
  link.sending = head.size() + rest.size();
  take_status(link, api_.ucp_stream_send_nbx(link.endpoint, link.parts, count, &param));
}

// Checks whether the send under way has completed; UCX then no longer reads the caller's bytes.
void Worker::advance(Link& link) {
  for (int attempt = 0; attempt < 2 && link.request != nullptr; ++attempt) {
    const ucs_status_t status = api_.ucp_request_check_status(link.request);
    if (status == UCS_INPROGRESS) {
      if (attempt == 0) progress();
      continue;
    }
    api_.ucp_request_free(std::exchange(link.request, nullptr));
    if (status != UCS_OK) link.has_failed = true;
  }
}

ssize_t Worker::send(int peer, std::span<const std::byte> head, std::span<const std::byte> rest) {
  const std::lock_guard lock(mutex_);
  Link& link = this->link(peer);
  if (link.sending == 0 && link.endpoint != nullptr && !link.has_failed) post(link, head, rest);
  advance(link);
  if (link.has_failed || link.endpoint == nullptr) return with_errno(ECONNRESET);
  if (link.request != nullptr) return with_errno(EAGAIN);
  return static_cast<ssize_t>(std::exchange(link.sending, 0));
}

// Fetches a chunk if none is left; returns true if there are bytes to take.
bool Worker::fetch(Link& link) {
  if (link.chunk != nullptr) return true;
  if (link.endpoint == nullptr) return false;
  for (int attempt = 0; attempt < 2; ++attempt) {
    std::size_t bytes = 0;
    const ucs_status_ptr_t chunk = api_.ucp_stream_recv_data_nb(link.endpoint, &bytes);
    if (UCS_PTR_IS_PTR(chunk)) {
      link.chunk = static_cast<std::byte*>(chunk);
      link.chunk_bytes = bytes;
      link.chunk_taken = 0;
      return true;
    }
    if (UCS_PTR_IS_ERR(chunk)) link.has_failed = true;
    if (attempt == 0) progress();
  }
  return false;
}

ssize_t Worker::receive(int peer, std::span<std::byte> into) {
  const std::lock_guard lock(mutex_);
  Link& link = this->link(peer);
  std::size_t got = 0;
  while (got < into.size() && fetch(link)) {
    const std::size_t count = std::min(into.size() - got, link.chunk_bytes - link.chunk_taken);
    std::memcpy(into.data() + got, link.chunk + link.chunk_taken, count);
    got += count;
    link.chunk_taken += count;
    if (link.chunk_taken < link.chunk_bytes) break;
    api_.ucp_stream_data_release(link.endpoint, std::exchange(link.chunk, nullptr));
  }
  if (got > 0 || into.empty()) return static_cast<ssize_t>(got);
  return with_errno(link.has_failed || link.endpoint == nullptr ? ECONNRESET : EAGAIN);
}

// Peeks at the first chunk only. That is enough, because the beginning of a message is sent in one
// piece.
ssize_t Worker::peek(int peer, std::span<std::byte> into) {
  const std::lock_guard lock(mutex_);
  Link& link = this->link(peer);
  if (!fetch(link)) return with_errno(link.has_failed ? ECONNRESET : EAGAIN);
  const std::size_t count = std::min(into.size(), link.chunk_bytes - link.chunk_taken);
  std::memcpy(into.data(), link.chunk + link.chunk_taken, count);
  return static_cast<ssize_t>(count);
}

bool Worker::is_ready(int peer, short events) {
  const std::lock_guard lock(mutex_);
  Link& link = this->link(peer);
  if (link.has_failed || link.endpoint == nullptr) return true;
  if ((events & POLLIN) != 0 && fetch(link)) return true;
  if ((events & POLLOUT) == 0) return false;
  advance(link);
  return link.request == nullptr;
}

// UCX can end a stream's send only together with its endpoint, and only if the endpoint handles
// failures of peers. After that the worker is not called any more, so that it does not read the
// abandoned bytes, and because UCX 1.13 crashes in the remains of an endpoint that was closed
// during a send over TCP.
void Worker::give_up_sends() {
  const std::lock_guard lock(mutex_);
  const auto is_sending = [](const Link& link) { return link.request != nullptr; };
  const auto can_end = [&](const Link& link) {
    return is_sending(link) && link.reports_peer_failure;
  };
  const auto some_are_sending = [&] {
    for (const auto& link : links_) advance(*link);
    return std::any_of(links_.begin(), links_.end(),
                       [&](const auto& link) { return is_sending(*link); });
  };
  // Gives the sends under way a moment to complete: they may tell a peer why this rank fails.
  const auto deadline = Deadline::after(kLastWordsLimit);
  while (!is_dead_ && some_are_sending() && !deadline.expired()) std::this_thread::yield();
  is_dead_ = is_dead_ || some_are_sending();
  if (!is_dead_) return;
  close(can_end);
  for (const auto& link : links_) *link = {};
}

template <class Choose>
void Worker::close(const Choose& is_chosen) {
  std::vector<ucs_status_ptr_t> closing;
  for (const auto& each : links_) {
    Link& link = *each;
    if (link.endpoint == nullptr || !is_chosen(link)) continue;
    if (link.chunk != nullptr) {
      api_.ucp_stream_data_release(link.endpoint, std::exchange(link.chunk, nullptr));
    }
    ucp_request_param_t param{};
    param.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
    param.flags = UCP_EP_CLOSE_FLAG_FORCE;
    closing.push_back(api_.ucp_ep_close_nbx(std::exchange(link.endpoint, nullptr), &param));
    if (link.request != nullptr) closing.push_back(std::exchange(link.request, nullptr));
  }
  const auto deadline = Deadline::after(kCloseLimit);
  for (const ucs_status_ptr_t request : closing) {
    if (!UCS_PTR_IS_PTR(request)) continue;
    while (!is_dead_ && api_.ucp_request_check_status(request) == UCS_INPROGRESS &&
           !deadline.expired()) {
      progress();
    }
    api_.ucp_request_free(request);
  }
}

}  // namespace paceline::ucx
