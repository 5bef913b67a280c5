// The caller's connections: how they are made, lost and made again.

#include <algorithm>
#include <cerrno>
#include <utility>

#include <poll.h>
#include <sys/epoll.h>

#include "paceline/engine/core/authentication.h"
#include "paceline/engine/core/check.h"
#include "paceline/engine/core/error_text.h"
#include "paceline/engine/core/log.h"
#include "paceline/engine/core/system/socket.h"
#include "paceline/engine/rpc/caller.h"

namespace paceline::rpc {
namespace {

using namespace std::chrono_literals;

constexpr auto kConnectTimeout = 3s;

// Thrown when the callee's process has ended.
class CalleeGone {};

void authenticate(const Fd& socket, ClientHandshake& handshake, Deadline deadline) {
  send_all(socket, handshake.hello(), deadline);
  std::vector<std::byte> bytes;
  while (!handshake.done()) {
    bytes.resize(handshake.wanted());
    receive_all(socket, bytes, deadline);
    const auto answer = handshake.feed(bytes);
    if (!answer.empty()) send_all(socket, answer, deadline);
  }
}

}  // namespace

// Requires: the mutex is held.
void Caller::want_connection_locked(std::chrono::milliseconds delay) {
  if (is_connecting_ || is_closed_ || connection_) return;
  if (delay > 0ms) {
    connect_at_ = Deadline::after(delay);
    return;
  }
  is_connecting_ = true;
  connect_at_.reset();
  pool_->run([self = shared_from_this()] {
    const Pool::Blocked blocked;
    self->connect();
  });
}

void Caller::connect() {
  // begun() is called before the directory is read: if the directory says that the worker has left,
  // calls that begin after this point may be for another process that has taken the worker's name.
  const Begun before = begun();
  try {
    const auto callee = setup_->directory->find(name_);
    if (!callee) {
      // The worker may join later.
      const std::string why = setup_->directory->unknown_worker_text(name_);
      const Lock lock(mutex_);
      is_connecting_ = false;
      why_ = why;
      why_code_ = ErrorCode::kInvalid;
      return want_connection_locked(kLookUpPause);
    }
    if (callee->state == WorkerInfo::State::kPresent) return connect_to(*callee);
    end_all(
        callee->state == WorkerInfo::State::kLeft ? "the worker has left" : "the worker is lost",
        ErrorCode::kPeerLost, before);
  } catch (const CalleeGone&) {
    end_all("the worker is lost: its process has ended", ErrorCode::kPeerLost, before);
  } catch (const Error& error) {
    connection_failed(
        error.code() == ErrorCode::kInvalid ? ErrorCode::kInvalid : ErrorCode::kPeerLost,
        error.what());
  } catch (const std::exception& error) {
    connection_failed(ErrorCode::kPeerLost, error.what());
  }
}

void Caller::connection_failed(ErrorCode code, const std::string& why) {
  const Lock lock(mutex_);
  is_connecting_ = false;
  why_ = why;
  why_code_ = code;
  pause_ = std::min(2 * pause_, kLongestPause);
  want_connection_locked(pause_);
}

std::pair<Fd, std::unique_ptr<Cipher>> Caller::make_connection(const WorkerEntry& callee) {
  const auto deadline = Deadline::after(kConnectTimeout);
  const WorkerEntry& self = setup_->self;
  check(callee.encrypts == self.encrypts,
        "{} encrypts and {} does not: start all workers with --encrypt (PACELINE_ENCRYPT=1), or "
        "none",
        callee.encrypts ? callee.name : self.name, callee.encrypts ? self.name : callee.name);
  const bool is_near = callee.shares_host_with(self);
  auto attempt = is_near ? ConnectAttempt::to_unix(callee.unix_name)
                         : ConnectAttempt({callee.tcp_host, callee.tcp_port});
  int error = attempt.go_on();
  while (error == EINPROGRESS) {
    error = wait_ready(attempt.socket().get(), POLLOUT, deadline) ? attempt.go_on() : ETIMEDOUT;
  }
  // A worker listens until it leaves or ends, even while it is frozen, so a refusal is final. If
  // another program now has the port, or the name of the Unix socket, the handshake fails.
  if (error == ECONNREFUSED) {
    setup_->directory->change(callee, WorkerInfo::State::kLost);
    throw CalleeGone();
  }
  if (error != 0) throw system_error("connecting to worker " + name_, error);
  Fd socket = attempt.take();
  if (!is_near) prepare_tcp(socket);
  const bool encrypts = is_encrypted(callee, self);
  const auto keys = encrypts ? HandshakeSide::Keys::kAgree : HandshakeSide::Keys::kNone;
  ClientHandshake handshake(setup_->key, connection_context(callee, encrypts), "worker " + name_,
                            keys);
  authenticate(socket, handshake, deadline);
  std::unique_ptr<Cipher> cipher;
  if (encrypts) cipher = std::make_unique<Cipher>(kCallCipher, handshake.session_keys());
  return {std::move(socket), std::move(cipher)};
}

void Caller::connect_to(const WorkerEntry& callee) {
  auto [socket, cipher] = make_connection(callee);
  auto connection = std::make_shared<Connection>(std::move(socket), std::move(cipher),
                                                 longest_frame(*setup_), true, setup_->spin);
  connection->offer_rings();
  Lock lock(mutex_);
  is_connecting_ = false;
  if (is_closed_) return;
  const bool is_another = !incarnation_.empty() && incarnation_ != callee.incarnation;
  const bool lost = is_another && std::exchange(had_session_, false);
  const std::string before = std::exchange(incarnation_, callee.incarnation);
  is_callee_gone_ = false;
  connection_ = std::move(connection);
  descriptor_ = connection_->socket();
  is_watched_ = true;
  is_sending_ = false;
  num_reads_in_row_ = 0;
  pause_ = kShortestPause;
  max_message_ = std::min<std::size_t>(setup_->max_message, callee.max_message);
  end_too_large_locked();
  CallerSession::Steps steps;
  session_.connected(steps);
  carry_out(steps);
  pool_->add(shared_from_this(), EPOLLIN);
  send(lock);
  if (lost) session_lost_(before);
}

// Ends calls and messages that are too large for the callee; they began before its limit was known.
void Caller::end_too_large_locked() {
  std::erase_if(to_tell_, [&](const auto& told) {
    const std::size_t size = told.second->writer().size();
    if (size <= max_message_) return false;
    --num_told_;
    bytes_told_ -= size;
    log::warning(
        fmt::format("{}: dropped a one-way message of {} bytes to worker {}: the "
                    "limit is {} bytes (JoinOptions::max_message of worker {})",
                    setup_->self.name, size, name_, max_message_, name_));
    return true;
  });
  std::vector<CallNumber> large;
  for (const auto& [number, call] : calls_) {
    if (call->size_ > max_message_) large.push_back(number);
  }
  if (large.empty()) return;
  const std::string why = std::exchange(
      why_, fmt::format("the message is above the limit of {} bytes (JoinOptions::max_message of "
                        "worker {})",
                        max_message_, name_));
  const ErrorCode code = std::exchange(why_code_, ErrorCode::kInvalid);
  CallerSession::Steps steps;
  for (const CallNumber number : large) session_.give_up(number, steps);
  carry_out(steps);
  why_ = why;
  why_code_ = code;
}

void Caller::disconnect(const ConnectionPointer& connection, const std::string& why) {
  const Lock lock(mutex_);
  if (connection != connection_) return;
  pool_->remove(*this);
  connection_->shut_down();
  connection_.reset();
  descriptor_ = -1;
  session_.disconnected();
  lease_.interrupt();
  to_acknowledge_.clear();
  to_tell_.clear();
  num_told_ = bytes_told_ = num_handled_ = bytes_handled_ = 0;
  why_ = why;
  why_code_ = ErrorCode::kPeerLost;
  // Reconnects even without calls, so that the session survives.
  want_connection_locked(kShortestPause);
}

}  // namespace paceline::rpc
