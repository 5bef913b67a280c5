#include "paceline/engine/transport/formation/dialer.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <utility>

#include <sys/socket.h>

#include "paceline/engine/core/awake_clock.h"
#include "paceline/engine/core/bytes.h"
#include "paceline/engine/core/check.h"
#include "paceline/engine/core/error_text.h"
#include "paceline/engine/core/system/io.h"

namespace paceline {

namespace {

using namespace std::chrono_literals;

constexpr auto kLocalConnectTimeout = 1s;
constexpr auto kTcpConnectTimeout = 10s;
constexpr auto kReconnectTimeout = 3s;  // short, because the peer has just answered
constexpr auto kTurnedAwayTimeout = 30s;
constexpr auto kFirstConnectPause = 1ms, kLastConnectPause = 100ms;
constexpr auto kFirstCallPause = 50ms, kLastCallPause = 1000ms;

}  // namespace

Dial::Dial(int rank, const Callee& callee, Channel channel, const Secret& secret)
    : rank_(rank),
      callee_(callee),
      channel_(channel),
      secret_(secret),
      connect_until_(longest_connect(kTcpConnectTimeout)),
      call_until_(Deadline::after(kTurnedAwayTimeout)),
      connect_pause_(kFirstConnectPause),
      call_pause_(kFirstCallPause) {}

Deadline Dial::longest_connect(std::chrono::nanoseconds over_tcp) const {
  const bool is_near = !callee_.unix_name.empty() || is_loopback(callee_.tcp.host);
  return Deadline::after(is_near ? std::chrono::nanoseconds(kLocalConnectTimeout) : over_tcp);
}

Deadline Dial::connect_until() const { return put_off(connect_until_); }

pollfd Dial::entry() const {
  if (attempt_) return {attempt_->socket().get(), POLLOUT, 0};
  const int events = POLLIN | (unsent_.empty() ? 0 : POLLOUT);
  // There may be no socket yet: poll() skips the entry.
  return {socket_.get(), static_cast<short>(events), 0};
}

std::chrono::nanoseconds Dial::time_left() const {
  if (handshake_) return Deadline::never().remaining();
  return (attempt_ ? connect_until() : begins_).remaining();
}

bool Dial::go_on(bool is_ready) {
  if (handshake_) {
    try {
      if (is_ready) shake_hands();
    } catch (const Error& error) {
      turned_away(error);
    }
  } else if (!attempt_) {
    if (begins_.expired()) begin();
  } else if (is_ready) {
    go_on_connecting();
  } else if (connect_until().expired()) {
    refused(ETIMEDOUT);
  }
  return handshake_ && handshake_->done() && unsent_.empty();
}

NewChannel Dial::take() {
  NewChannel channel{callee_.rank, static_cast<int>(channel_), std::move(socket_), {}};
  if (callee_.keys == HandshakeSide::Keys::kAgree) channel.keys = handshake_->session_keys();
  return channel;
}

void Dial::begin() {
  const bool is_local = !callee_.unix_name.empty();
  attempt_ = is_local ? ConnectAttempt::to_unix(callee_.unix_name) : ConnectAttempt(callee_.tcp);
  go_on_connecting();
}

void Dial::go_on_connecting() {
  const int error = attempt_->go_on();
  if (error == EINPROGRESS) return;
  if (error != 0) return refused(error);
  socket_ = attempt_->take();
  attempt_.reset();
  handshake_.emplace(secret_, callee_.context, callee_.description, callee_.keys);
  unsent_ = {};
  unsent_.add(handshake_->hello());
  try {
    send();
  } catch (const Error& error_of_send) {
    turned_away(error_of_send);
  }
}

void Dial::refused(int error) {
  if (!is_retryable_connect_error(error)) throw system_error("connect()", error);
  if (connect_until().remaining() <= connect_pause_) {
    fail(ErrorCode::kPeerLost,
         "it has died, or a firewall is between the hosts: could not connect to {} in time: {}",
         callee_.unix_name.empty() ? to_string(callee_.tcp) : "its Unix socket",
         std::strerror(error));
  }
  attempt_.reset();
  // No event signals that a listener has started in another process.
  begins_ = Deadline::after(connect_pause_);
  connect_pause_ = std::min<Milliseconds>(2 * connect_pause_, kLastConnectPause);
}

void Dial::shake_hands() {
  send();
  while (!handshake_->done()) {
    std::vector<std::byte> answer;
    const ssize_t got = handshake_->receive(socket_, answer);
    if (got < 0 && errno == EAGAIN) return;
    if (got <= 0) {
      fail(ErrorCode::kPeerLost, "it hung up in the handshake: {}",
           got == 0 ? "the connection was closed" : std::strerror(errno));
    }
    if (answer.empty()) continue;
    unsent_.add(std::move(answer));
    unsent_.add(hello());
    send();
  }
}

std::vector<std::byte> Dial::hello() const {
  ByteWriter writer;
  writer.put(static_cast<std::int32_t>(rank_));
  writer.put(static_cast<std::int32_t>(channel_));
  return writer.take();
}

void Dial::send() {
  if (unsent_.flush(socket_.get())) return;
  fail(ErrorCode::kPeerLost, "it hung up in the handshake: {}", std::strerror(errno));
}

void Dial::turned_away(const Error& error) {
  if (error.code() != ErrorCode::kPeerLost || put_off(call_until_).remaining() <= call_pause_)
    throw error;
  handshake_.reset();
  socket_.reset();
  begins_ = Deadline::after(call_pause_);  // no event signals that the peer has room again
  call_pause_ = std::min<Milliseconds>(2 * call_pause_, kLastCallPause);
  connect_until_ =
      Deadline::after(begins_.remaining() + longest_connect(kReconnectTimeout).remaining());
  connect_pause_ = kFirstConnectPause;
}

Dialer::Dialer(Caller self, std::vector<Callee> callees, const Secret& secret, std::string group)
    : self_(std::move(self)),
      callees_(std::move(callees)),
      secret_(secret),
      group_(std::move(group)) {
  for (const Callee& callee : callees_) waiting_.emplace_back(&callee, Channel::kControl);
}

void Dialer::add_to(std::vector<pollfd>& entries) {
  while (!waiting_.empty() && calls_.size() < kMaxAtOnce) {
    const auto [callee, channel] = waiting_.front();
    waiting_.pop_front();
    calls_.emplace_back(self_.rank, *callee, channel, secret_);
  }
  first_entry_ = entries.size();
  for (const Dial& call : calls_) entries.push_back(call.entry());
}

std::chrono::nanoseconds Dialer::time_left() const {
  auto least = Deadline::never().remaining();
  for (const Dial& call : calls_) least = std::min(least, call.time_left());
  return least;
}

std::vector<NewChannel> Dialer::serve(std::span<const pollfd> entries) {
  std::vector<NewChannel> channels;
  auto entry = entries.subspan(first_entry_, calls_.size()).begin();
  for (auto call = calls_.begin(); call != calls_.end(); ++entry) {
    if (!go_on(*call, entry->revents != 0)) {
      ++call;
      continue;
    }
    channels.push_back(call->take());
    if (call->channel() == Channel::kControl) {
      for (int channel = call->callee().num_channels - 1; channel > 0; --channel) {
        waiting_.emplace_front(&call->callee(), static_cast<Channel>(channel));
      }
    }
    call = calls_.erase(call);
  }
  return channels;
}

bool Dialer::go_on(Dial& call, bool is_ready) const {
  try {
    return call.go_on(is_ready);
  } catch (const Error& error) {
    throw error
        .reworded(fmt::format("{}: connecting to {} of group {} failed: {}", self_.name,
                              call.callee().description, group_, error.what()))
        .with({.ranks = {call.callee().in_world}});
  }
}

}  // namespace paceline
