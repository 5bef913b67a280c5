// The thread body of TcpStoreServer: it accepts and drops connections, passes requests to the
// StoreService and sends its replies.
//
// Thread safety: one thread calls run(); any thread may call the other public methods.

#include "paceline/engine/store/tcp_store_server.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>

#include "paceline/engine/core/authentication.h"
#include "paceline/engine/core/awake_clock.h"
#include "paceline/engine/core/check.h"
#include "paceline/engine/core/deadline.h"
#include "paceline/engine/core/error_text.h"
#include "paceline/engine/core/log.h"
#include "paceline/engine/core/system/fd.h"
#include "paceline/engine/core/system/io.h"
#include "paceline/engine/core/system/thread.h"
#include "paceline/engine/store/store_protocol.h"
#include "paceline/engine/store/store_service.h"

namespace paceline {

class StoreServerLoop {
 public:
  // Makes `listener` non-blocking.
  StoreServerLoop(Fd listener, const Secret& secret, const TcpStoreServerOptions& options);

  // Serves clients until stop(). Does not throw.
  void run();
  void stop();
  // Returns false when clients are still connected at the deadline.
  bool wait_until_clients_left(Deadline deadline);
  std::size_t num_clients();

 private:
  using Id = StoreService::Client;
  using Clock = AwakeClock;

  void turn();
  int wait_milliseconds() const;
  void watch(int fd, Id id, unsigned events, int operation);

  void accept_some();
  void admit(Fd socket);
  void relieve(int error);
  void pause_listener();
  void resume_listener(Clock::time_point now);

  void serve(Id id, unsigned events);
  void answer(const StoreService::Answer& answer);
  void handle_requests(Id id, StoreConnection& connection);
  void update_interest(Id id, StoreConnection& connection);
  void drop_late_strangers(Clock::time_point now);
  void drop_oldest_stranger(const std::string& reason);
  void drop(Id id);
  void count_clients();
  void complain(const std::string& what);
  // Runs `body`, and drops the connection when it throws.
  template <class Body>
  void guard(Id id, Body body);

  Fd listener_;
  Secret secret_;
  TcpStoreServerOptions options_;
  std::string name_;  // "the store at 127.0.0.1:29500", for the log
  Fd epoll_, stop_event_;
  Fd reserve_;        // reserved: closed to refuse a connection when no other descriptor is free
  std::mutex mutex_;  // guards num_clients_
  std::condition_variable clients_left_;
  std::size_t num_clients_ = 0;  // clients that have completed their handshake
  bool stopping_ = false;
  Vigil vigil_;
  StoreService service_;
  Id next_id_;
  std::unordered_map<Id, std::unique_ptr<StoreConnection>> connections_;
  std::unordered_map<Id, Clock::time_point> arrivals_;  // when each stranger arrived
  std::set<Id> strangers_;  // connections before the end of their handshake; ids grow, so the first
                            // is the oldest
  std::optional<Clock::time_point> resume_at_;
  Clock::time_point last_complaint_{};
  std::uint64_t unsaid_complaints_ = 0;
  std::array<std::byte, 64 << 10> scratch_;
};

namespace {

using namespace std::chrono_literals;

constexpr std::uint64_t kStopId = 0;
constexpr std::uint64_t kListenerId = 1;
constexpr std::uint64_t kFirstId = 2;
constexpr int kAcceptsAtOnce = 64;  // then the clients that are already connected are served
constexpr auto kListenerPause = 50ms;
constexpr auto kComplaintInterval = 1s;

Fd open_reserve() { return Fd(::open("/dev/null", O_RDONLY | O_CLOEXEC)); }

// The process that hosts the store needs descriptors of its own, so the connections may use at
// most three quarters of the process's limit, and strangers at most a quarter.
TcpStoreServerOptions fit_to_descriptor_limit(TcpStoreServerOptions options) {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) {
    const auto descriptors = static_cast<std::size_t>(limit.rlim_cur);
    options.max_strangers =
        std::min(options.max_strangers, std::max<std::size_t>(descriptors / 4, 1));
    options.max_connections =
        std::min(options.max_connections, std::max<std::size_t>(descriptors / 4 * 3, 1));
  }
  return options;
}

}  // namespace

StoreServerLoop::StoreServerLoop(Fd listener, const Secret& secret,
                                 const TcpStoreServerOptions& options)
    : listener_(std::move(listener)),
      secret_(secret),
      options_(fit_to_descriptor_limit(options)),
      name_("the store at " + to_string(Endpoint{local_address(listener_), local_port(listener_)})),
      epoll_(::epoll_create1(EPOLL_CLOEXEC)),
      stop_event_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      reserve_(open_reserve()),
      service_(options.limits),
      next_id_(kFirstId) {
  if (!epoll_ || !stop_event_) throw system_error(name_ + " could not start: epoll or eventfd");
  const int flags = ::fcntl(listener_.get(), F_GETFL);
  if (::fcntl(listener_.get(), F_SETFL, flags | O_NONBLOCK) != 0) throw system_error("fcntl()");
  watch(stop_event_.get(), kStopId, EPOLLIN, EPOLL_CTL_ADD);
  watch(listener_.get(), kListenerId, EPOLLIN, EPOLL_CTL_ADD);
}

void StoreServerLoop::stop() { ring(stop_event_.get()); }

void StoreServerLoop::run() {
  while (!stopping_) {
    try {
      turn();
    } catch (const std::exception& error) {
      log::error(name_ + ": " + error.what());
    }
  }
  connections_.clear();
}

void StoreServerLoop::turn() {
  std::array<epoll_event, 256> events;
  const int count = ::epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()),
                                 wait_milliseconds());
  vigil_.look();
  if (count < 0 && errno != EINTR) {
    stopping_ = true;
    throw system_error("epoll_wait(): the store stops");
  }
  for (int i = 0; i < count; ++i) {
    const Id id = events[i].data.u64;
    if (id == kStopId) stopping_ = true;
    if (id == kListenerId) accept_some();
    if (id >= kFirstId) serve(id, events[i].events);
  }
  const auto now = Clock::now();
  service_.expire(now);
  for (auto answers = service_.take_answers(); !answers.empty();
       answers = service_.take_answers()) {
    for (const auto& due : answers) answer(due);
  }
  drop_late_strangers(now);
  resume_listener(now);
  count_clients();
}

void StoreServerLoop::count_clients() {
  const std::lock_guard lock(mutex_);
  num_clients_ = connections_.size() - strangers_.size();
  if (num_clients_ == 0) clients_left_.notify_all();
}

bool StoreServerLoop::wait_until_clients_left(Deadline deadline) {
  std::unique_lock lock(mutex_);
  return wait_awake(clients_left_, lock, deadline, [&] { return num_clients_ == 0; });
}

std::size_t StoreServerLoop::num_clients() {
  const std::lock_guard lock(mutex_);
  return num_clients_;
}

int StoreServerLoop::wait_milliseconds() const {
  Clock::time_point next = Clock::now() + Vigil::kRound;
  if (const auto deadline = service_.next_deadline()) next = std::min(next, *deadline);
  if (resume_at_) next = std::min(next, *resume_at_);
  if (!strangers_.empty()) {
    next = std::min(next, arrivals_.at(*strangers_.begin()) + options_.handshake_timeout);
  }
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(next - Clock::now());
  return static_cast<int>(std::max(left, 0ms).count());
}

void StoreServerLoop::watch(int fd, Id id, unsigned events, int operation) {
  epoll_event event{};
  event.events = events;
  event.data.u64 = id;
  if (::epoll_ctl(epoll_.get(), operation, fd, &event) != 0) throw system_error("epoll_ctl()");
}

void StoreServerLoop::accept_some() {
  for (int i = 0; i < kAcceptsAtOnce; ++i) {
    Fd socket(accept_one(listener_.get()));
    if (socket) {
      admit(std::move(socket));
    } else {
      if (errno != EAGAIN) relieve(errno);
      return;
    }
  }
}

void StoreServerLoop::admit(Fd socket) {
  if (strangers_.size() >= options_.max_strangers) {
    drop_oldest_stranger("too many connections are waiting for their handshake");
  }
  if (connections_.size() >= options_.max_connections && !strangers_.empty()) {
    drop_oldest_stranger("too many connections");
  }
  if (connections_.size() >= options_.max_connections) {
    complain(fmt::format("refused {}: all {} connections are in use", peer_name(socket),
                         options_.max_connections));
    return;
  }
  const Id id = next_id_++;
  auto connection = std::make_unique<StoreConnection>(std::move(socket), secret_);
  connection->interest = EPOLLIN | EPOLLRDHUP;
  watch(connection->fd(), id, connection->interest, EPOLL_CTL_ADD);
  connections_.emplace(id, std::move(connection));
  arrivals_.emplace(id, Clock::now());
  strangers_.insert(id);
}

// Called when the next connection cannot be accepted, usually because no descriptor is left. Drops
// the oldest stranger or, if there is none, closes reserve_, and accepts and closes the connection.
// If the connection stayed in the queue, epoll would wake the loop again and again.
void StoreServerLoop::relieve(int error) {
  if (!strangers_.empty()) {
    drop_oldest_stranger(std::strerror(error));
    return;
  }
  reserve_.reset();
  { const Fd refused(accept_one(listener_.get())); }
  reserve_ = open_reserve();
  complain(fmt::format("refused a connection: {} (raise ulimit -n)", std::strerror(error)));
  pause_listener();
}

void StoreServerLoop::pause_listener() {
  watch(listener_.get(), kListenerId, 0, EPOLL_CTL_MOD);
  resume_at_ = Clock::now() + kListenerPause;
}

void StoreServerLoop::resume_listener(Clock::time_point now) {
  if (!resume_at_ || now < *resume_at_) return;
  resume_at_.reset();
  watch(listener_.get(), kListenerId, EPOLLIN, EPOLL_CTL_MOD);
}

template <class Body>
void StoreServerLoop::guard(Id id, Body body) {
  const auto entry = connections_.find(id);
  if (entry == connections_.end()) return;  // dropped earlier in this round of the loop
  StoreConnection& connection = *entry->second;
  try {
    body(connection);
    update_interest(id, connection);
  } catch (const std::exception& cause) {
    const auto* error = dynamic_cast<const Error*>(&cause);
    const bool left = error != nullptr && error->code() == ErrorCode::kPeerLost;
    if (!left)
      complain(fmt::format("closed the connection of {}: {}", connection.peer(), cause.what()));
    drop(id);
  }
}

void StoreServerLoop::serve(Id id, unsigned events) {
  guard(id, [&](StoreConnection& connection) {
    const bool hung_up = (events & (EPOLLHUP | EPOLLERR | EPOLLRDHUP)) != 0;
    if (hung_up && (connection.interest & EPOLLIN) == 0) {
      fail(ErrorCode::kPeerLost, "{} left", connection.peer());
    }
    if ((events & EPOLLOUT) != 0) connection.flush();
    if ((connection.interest & EPOLLIN) != 0) connection.read(scratch_);
    if (connection.authenticated() && strangers_.erase(id) > 0) {
      arrivals_.erase(id);
      count_clients();  // before the first reply, so that any client with a reply is counted
    }
    handle_requests(id, connection);
  });
}

void StoreServerLoop::answer(const StoreService::Answer& answer) {
  guard(answer.client, [&](StoreConnection& connection) {
    connection.parked = false;
    connection.send(encode(answer.reply));
    handle_requests(answer.client, connection);
  });
}

void StoreServerLoop::handle_requests(Id id, StoreConnection& connection) {
  while (connection.authenticated() && !connection.parked && !connection.has_output()) {
    auto request = connection.next_request();
    if (!request) return;
    const auto reply = service_.handle(id, std::move(*request), Clock::now());
    connection.parked = !reply;
    if (reply) connection.send(encode(*reply));
  }
}

// The server does not read from a client whose request is parked or whose reply is not sent yet;
// further requests stay in the socket.
void StoreServerLoop::update_interest(Id id, StoreConnection& connection) {
  unsigned interest = EPOLLRDHUP;
  if (connection.has_output()) {
    interest |= EPOLLOUT;
  } else if (!connection.parked) {
    interest |= EPOLLIN;
  }
  if (interest == connection.interest) return;
  watch(connection.fd(), id, interest, EPOLL_CTL_MOD);
  connection.interest = interest;
}

void StoreServerLoop::drop_late_strangers(Clock::time_point now) {
  while (!strangers_.empty() &&
         arrivals_.at(*strangers_.begin()) + options_.handshake_timeout <= now) {
    drop_oldest_stranger("its handshake took too long");
  }
}

void StoreServerLoop::drop_oldest_stranger(const std::string& reason) {
  const Id id = *strangers_.begin();
  complain(fmt::format("closed the connection of {}: {}", connections_.at(id)->peer(), reason));
  drop(id);
}

void StoreServerLoop::drop(Id id) {
  service_.forget(id);
  strangers_.erase(id);
  arrivals_.erase(id);
  connections_.erase(id);
}

void StoreServerLoop::complain(const std::string& what) {
  const auto now = Clock::now();
  if (now - last_complaint_ < kComplaintInterval) {
    ++unsaid_complaints_;
    return;
  }
  last_complaint_ = now;
  const auto unsaid = std::exchange(unsaid_complaints_, 0);
  const auto suffix = unsaid == 0 ? "" : fmt::format(" (and {} warnings before this one)", unsaid);
  log::warning(name_ + " " + what + suffix);
}

TcpStoreServer::TcpStoreServer(const Endpoint& endpoint, const Secret& secret,
                               TcpStoreServerOptions options)
    : TcpStoreServer(listen_tcp(endpoint), secret, options) {}

TcpStoreServer::TcpStoreServer(Fd listener, const Secret& secret, TcpStoreServerOptions options)
    : port_(local_port(listener)),
      loop_(std::make_unique<StoreServerLoop>(std::move(listener), secret, options)),
      thread_(start_thread("store-server", [loop = loop_.get()] { loop->run(); })) {}

TcpStoreServer::~TcpStoreServer() {
  if (!owner_.is_this()) {
    // The child shares the descriptors with the parent, whose thread may have been changing the
    // loop during the fork.
    thread_.detach();
    [[maybe_unused]] const auto* const served_by_parent = loop_.release();
    return;
  }
  loop_->stop();
  thread_.join();
}

bool TcpStoreServer::wait_until_clients_left(std::chrono::milliseconds timeout) {
  return loop_->wait_until_clients_left(Deadline::after(timeout));
}

std::size_t TcpStoreServer::num_clients() const { return loop_->num_clients(); }

}  // namespace paceline
