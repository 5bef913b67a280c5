#include "paceline/engine/rpc/server/server.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <exception>
#include <iterator>

#include <sys/epoll.h>

#include "paceline/engine/core/check.h"
#include "paceline/engine/core/log.h"
#include "paceline/engine/core/system/io.h"
#include "paceline/engine/core/system/thread.h"
#include "paceline/engine/rpc/calls.h"
#include "paceline/engine/rpc/references.h"

namespace paceline::rpc {
namespace {

using namespace std::chrono_literals;

// The most connections that may be unauthenticated at once; one more closes the oldest.
constexpr std::size_t kMaxStrangers = 64;

SessionNumber random_number() {
  SessionNumber number = 0;
  fill_random(std::as_writable_bytes(std::span(&number, 1)));
  return number >> 1;  // later numbers count up from here
}

std::vector<CallNumber> read_numbers(const Payload& payload) {
  const auto bytes = payload.bytes();
  if (bytes.size() % sizeof(CallNumber) != 0) {
    fail(ErrorCode::kCorrupt, "a worker sent a list of calls of {} bytes", bytes.size());
  }
  std::vector<CallNumber> numbers(bytes.size() / sizeof(CallNumber));
  if (!numbers.empty()) std::memcpy(numbers.data(), bytes.data(), bytes.size());
  return numbers;
}

}  // namespace

// A listening socket for callers.
class Server::Door final : public Pool::Source {
 public:
  Door(const std::shared_ptr<Server>& server, Fd socket, bool is_local)
      : server_(server), socket_(std::move(socket)), is_local_(is_local) {}
  int descriptor() const override { return socket_.get(); }
  void ready() override {
    const auto server = server_.lock();
    if (!server) return;
    for (;;) {
      Fd caller(accept_one(socket_.get()));
      if (!caller) break;
      if (!is_local_) prepare_tcp(caller);
      const bool encrypts = server->setup_->self.encrypts && !is_local_;
      try {
        server->welcome(std::make_shared<Guest>(server, std::move(caller), encrypts));
      } catch (const std::exception& error) {
        log::debug(server->setup_->self.name +
                   ": a connection was lost during accept: " + error.what());
      }
    }
    is_full_ = errno != EAGAIN;
  }
  // Whether the last accept failed, perhaps because no descriptor was left.
  bool is_full() const { return is_full_; }

 private:
  const std::weak_ptr<Server> server_;
  const Fd socket_;
  const bool is_local_;
  std::atomic<bool> is_full_{false};
};

Server::Server(SetupPointer setup, std::shared_ptr<Pool> pool)
    : setup_(std::move(setup)), pool_(std::move(pool)), last_session_(random_number()) {}

Server::~Server() = default;

void Server::listen(Fd local, Fd tcp) {
  {
    const std::lock_guard lock(mutex_);
    doors_.push_back(std::make_shared<Door>(shared_from_this(), std::move(local), true));
    if (tcp) doors_.push_back(std::make_shared<Door>(shared_from_this(), std::move(tcp), false));
  }
  for (const auto& door : doors_) pool_->add(door, EPOLLIN);
  serve_references();
}

void Server::serve(std::vector<Method> methods) {
  decltype(methods_) added;
  const auto check_new = [&](const auto& there, std::uint64_t number) {
    const auto found = there.find(number);
    if (found == there.end()) return;
    fail(ErrorCode::kInvalid, "{}: serve: {} already has a handler", setup_->self.name,
         found->second->name);
  };
  const std::lock_guard lock(mutex_);
  for (Method& method : methods) {
    check(!method.name.empty(), "{}: serve: a method needs a name", setup_->self.name);
    const std::uint64_t number = method_id(method.name);
    check_new(methods_, number);
    check_new(added, number);
    added.emplace(number, std::make_shared<const Method>(std::move(method)));
  }
  methods_.merge(added);
}

void Server::set_references(std::weak_ptr<ReferenceTable> references) {
  const std::lock_guard lock(mutex_);
  references_ = std::move(references);
}

// ---- connections ----

void Server::welcome(const GuestPointer& guest) {
  GuestPointer oldest;
  {
    const std::lock_guard lock(mutex_);
    if (is_closed_) return;
    std::size_t num_strangers = 0;
    for (const auto& [address, other] : guests_) {
      if (other->is_known()) continue;
      ++num_strangers;
      if (!oldest || other->patience().moment() < oldest->patience().moment()) oldest = other;
    }
    if (num_strangers < kMaxStrangers) oldest.reset();
    guests_.emplace(guest.get(), guest);
  }
  if (oldest) leave(*oldest);
  pool_->add(guest, EPOLLIN);
}

void Server::leave(Guest& guest) {
  pool_->remove(guest);
  GuestPointer last;
  const std::lock_guard lock(mutex_);
  const auto found = guests_.find(&guest);
  if (found == guests_.end()) return;
  last = std::move(found->second);
  guests_.erase(found);
  if (last->is_known()) last->connection().shut_down();
  // The session continues without a connection until its lease expires.
  if (const auto session = last->session) {
    const std::lock_guard session_lock(session->mutex);
    if (session->guest == last) session->guest.reset();
  }
}

// ---- frames ----

void Server::take(const GuestPointer& guest, const Frame& frame, Payload payload) {
  switch (frame.kind) {
    case FrameKind::kOpen:
      return open(guest, frame, payload);
    case FrameKind::kResume:
      return resume(guest, frame, payload);
    case FrameKind::kRequest:
    case FrameKind::kTell:
      return request(guest, frame, std::move(payload));
    case FrameKind::kAcknowledge:
      return acknowledge(guest, frame, payload);
    case FrameKind::kRenew: {
      if (!guest->session || guest->session->number != frame.session) {
        return refuse(guest, frame.session);
      }
      const std::lock_guard lock(guest->session->mutex);
      if (guest->session->guest != guest) return;  // fenced by a newer connection
      guest->session->lease.heard(boot_time());
      return guest->connection().queue_urgent({.kind = FrameKind::kRenewed});
    }
    case FrameKind::kGoodbye:
      if (guest->session) end_session(guest->session);
      return;
    default:
      fail(ErrorCode::kCorrupt, "a caller sent a frame that only callees may send");
  }
}

void Server::refuse(const GuestPointer& guest, SessionNumber session) {
  guest->connection().queue({.kind = FrameKind::kRefused, .session = session});
}

Frame Server::credit(FrameKind kind, SessionNumber session) const {
  const auto lease = std::chrono::duration_cast<std::chrono::milliseconds>(setup_->lease);
  return {.kind = kind,
          .time_left_ms = static_cast<std::uint32_t>(lease.count()),
          .max_calls = static_cast<std::uint32_t>(setup_->max_calls),
          .session = session,
          .method = setup_->max_bytes};
}

void Server::open(const GuestPointer& guest, const Frame& frame, const Payload& payload) {
  Hello hello;
  if (const auto& own = payload.in_memory()) {
    if (const auto* object = own->object<Hello>()) hello = *object;
  } else {
    hello = read_message<Hello>(payload.bytes());
  }
  SessionPointer before, session;
  {
    const std::lock_guard lock(mutex_);
    if (is_closed_) return;
    SessionPointer& last = last_session_of_[hello.incarnation];
    // A caller has one session, which belongs to the connection that it made last, in whatever
    // order the kOpen frames arrive.
    if (last) {
      const std::lock_guard session_lock(last->mutex);
      if (last->calls.is_older(frame.number)) return;
    }
    session = std::make_shared<CalleeRecord>(++last_session_, frame.number, std::move(hello),
                                             boot_time(), setup_->lease);
    session->guest = guest;
    before = std::exchange(last, session);
    sessions_.emplace(session->number, session);
    guest->session = session;
  }
  if (before) end_session(before);
  guest->connection().queue(credit(FrameKind::kOpened, session->number));
}

void Server::resume(const GuestPointer& guest, const Frame& frame, const Payload& payload) {
  const auto sent = read_numbers(payload);
  SessionPointer session;
  {
    const std::lock_guard lock(mutex_);
    const auto found = sessions_.find(frame.session);
    if (found != sessions_.end()) guest->session = session = found->second;
  }
  if (!session) return refuse(guest, frame.session);
  const std::lock_guard lock(session->mutex);
  if (session->has_ended) return refuse(guest, frame.session);
  const auto resumption = session->calls.resume(frame.number, sent);
  if (!resumption) return;
  session->guest = guest;
  session->lease.heard(boot_time());
  auto list = std::make_shared<OutgoingBytes>();
  for (const auto& [number, state] : resumption->known) {
    list->to().put_number(number);
    list->to().put_number(static_cast<std::uint8_t>(state));
  }
  guest->connection().queue(credit(FrameKind::kResumed, session->number), list);
  for (const auto& [number, reply] : resumption->replies) {
    guest->connection().queue(
        {.kind = FrameKind::kReply, .status = reply->status, .number = number}, reply->message);
  }
  cancel_abandoned_locked(*session);
}

void Server::acknowledge(const GuestPointer& guest, const Frame& /*frame*/,
                         const Payload& payload) {
  const auto numbers = read_numbers(payload);
  const auto& session = guest->session;
  if (!session) return;
  const std::lock_guard lock(session->mutex);
  if (session->guest != guest) return;  // fenced by a newer connection
  session->lease.heard(boot_time());
  for (const CallNumber number : numbers) session->calls.acknowledge(number);
  cancel_abandoned_locked(*session);
}

void Server::cancel_abandoned_locked(CalleeRecord& session) {
  if (!session.calls.has_abandoned()) return;
  for (const CallNumber number : session.calls.take_abandoned()) {
    const auto running = session.running.find(number);
    if (running != session.running.end()) running->second->cancel();
  }
}

void Server::request(const GuestPointer& guest, const Frame& frame, Payload payload) {
  const bool is_tell = frame.kind == FrameKind::kTell;
  const SessionPointer session = guest->session;
  const std::size_t size = payload.bytes().size();
  const auto refused = [&] {
    refuse(guest, session ? session->number : 0);
    if (!is_tell) return;
    ++guest->num_handled;
    guest->bytes_handled += size;
  };
  if (!session) return refused();
  const auto deadline =
      is_tell ? Deadline::never() : Deadline::after(std::chrono::milliseconds(frame.time_left_ms));
  std::shared_ptr<const Method> method;
  {
    const std::lock_guard lock(mutex_);
    const auto found = methods_.find(frame.method);
    if (found != methods_.end()) method = found->second;
  }
  auto call = std::make_shared<Incoming>(shared_from_this(), session, session->caller.name, frame,
                                         std::move(payload), deadline);
  call->method_ = method;
  if (is_tell) call->teller_ = guest;
  {
    const std::lock_guard lock(session->mutex);
    if (session->has_ended) return refused();
    if (session->guest != guest) return;  // fenced by a newer connection
    session->lease.heard(boot_time());
    if (frame.acknowledged != 0) {
      session->calls.acknowledge(frame.acknowledged);
      cancel_abandoned_locked(*session);
    }
    if (!is_tell && !session->calls.admit(frame.number, frame.effect)) return;
    if (method) call->mark_ = setup_->stats.begin(CallSide::kCallee, frame.method, method->name);
    if (!is_tell) session->running.emplace(frame.number, call);
    if (method && method->kind == Method::Kind::kCreate &&
        !objects_.create(frame.object, method->class_number, session->number)) {
      method.reset();
    }
  }
  if (!method) {
    return call->answer(ReplyStatus::kNoMethod,
                        std::make_shared<OutgoingBytes>(
                            call->method_ ? "the object already exists"
                                          : "that worker has no handler for this method"));
  }
  dispatch(call);
}

// ---- leases and the end ----

void Server::end_session(const SessionPointer& session) {
  std::map<CallNumber, std::shared_ptr<Incoming>> running;
  {
    const std::lock_guard lock(mutex_);
    sessions_.erase(session->number);
    const auto last = last_session_of_.find(session->caller.incarnation);
    if (last != last_session_of_.end() && last->second == session) last_session_of_.erase(last);
    const std::lock_guard session_lock(session->mutex);
    session->has_ended = true;
    session->guest.reset();
    running = std::exchange(session->running, {});
  }
  for (const auto& [number, call] : running) call->cancel();
  Objects::Dead dead;
  objects_.end_session(session->number, dead);
  bury(std::move(dead));
}

void Server::look() {
  const auto now = boot_time();
  std::vector<SessionPointer> sessions;
  std::vector<GuestPointer> strangers;
  std::vector<std::shared_ptr<Door>> doors;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [number, session] : sessions_) sessions.push_back(session);
    for (const auto& [address, guest] : guests_) {
      if (!guest->is_known() && guest->patience().expired()) strangers.push_back(guest);
    }
    doors = doors_;
  }
  for (const auto& guest : strangers) leave(*guest);
  for (const auto& door : doors) {
    if (door->is_full()) pool_->change(*door, EPOLLIN);
  }
  for (const auto& session : sessions) {
    GuestPointer guest;
    bool has_expired = false;
    {
      const std::lock_guard lock(session->mutex);
      guest = session->guest;
      has_expired = session->lease.has_expired(now);
      if (guest && has_expired) refuse(guest, session->number);
      if (guest && !has_expired && guest->num_handled != guest->num_reported) {
        guest->num_reported = guest->num_handled.load();
        guest->bytes_reported = guest->bytes_handled.load();
        guest->connection().queue({.kind = FrameKind::kCredit,
                                   .number = guest->num_reported,
                                   .method = guest->bytes_reported});
      } else if (!has_expired) {
        guest.reset();
      }
    }
    if (has_expired) end_session(session);
    if (guest) guest->send();
  }
}

std::vector<std::string> Server::running_methods() const {
  std::vector<std::string> names;
  const std::lock_guard lock(mutex_);
  for (const auto& [number, session] : sessions_) {
    const std::lock_guard session_lock(session->mutex);
    for (const auto& [call, incoming] : session->running) {
      if (incoming->method_) names.push_back(incoming->method_->name);
    }
  }
  return names;
}

void Server::collect_open(std::vector<OpenCall>& open) const {
  const std::uint64_t now = record_time();
  const std::lock_guard lock(mutex_);
  for (const auto& [session_number, session] : sessions_) {
    const std::lock_guard session_lock(session->mutex);
    for (const auto& [number, call] : session->running) {
      const std::uint64_t begun = call->mark_.begun, started = CallStats::started(call->mark_);
      if (begun == 0) continue;
      if (now < begun + CallGauge::kLong || open.size() == CallGauge::kMaxOpen) break;
      open.push_back({.worker = setup_->self.name,
                      .other = session->caller.name,
                      .method = call->method_->name,
                      .number = number,
                      .caller = worker_hash(session->caller.incarnation),
                      .begun = started != 0 ? started : begun,
                      .state = started != 0 ? OpenState::kRunning : OpenState::kQueued});
    }
  }
}

void Server::begin_to_leave() {
  is_leaving_ = true;
  auto waiting = objects_.take_waiting();
  {
    const std::lock_guard lock(mutex_);
    for (auto& [method, queue] : queues_) {
      const auto calls = std::exchange(queue.waiting, nullptr);
      if (calls) std::move(calls->begin(), calls->end(), std::back_inserter(waiting));
    }
    for (const auto& [number, session] : sessions_) {
      const std::lock_guard session_lock(session->mutex);
      for (const auto& [call, incoming] : session->running) incoming->cancel();
    }
  }
  // Each call is removed from the count before it is answered: a running handler may be closing the
  // worker, and would wait for these calls.
  for (const auto& call : waiting) {
    ended_one();
    call->answer(ReplyStatus::kLeaving, std::make_shared<OutgoingBytes>("the worker is leaving"));
  }
}

void Server::close() {
  std::vector<std::shared_ptr<Door>> doors;
  std::unordered_map<Guest*, GuestPointer> guests;
  std::unordered_map<SessionNumber, SessionPointer> sessions;
  {
    const std::lock_guard lock(mutex_);
    is_closed_ = true;
    doors = std::exchange(doors_, {});
    guests = guests_;
    sessions = sessions_;
  }
  for (const auto& door : doors) pool_->remove(*door);
  for (const auto& [address, guest] : guests) {
    if (guest->is_known()) guest->connection().flush();
    leave(*guest);
  }
  for (const auto& [number, session] : sessions) end_session(session);
}

void Server::forget_waiting() {
  std::unordered_map<const Method*, CallQueue> queues;
  {
    const std::lock_guard lock(mutex_);
    queues = std::exchange(queues_, {});
  }
  objects_.forget_all();
}

}  // namespace paceline::rpc
