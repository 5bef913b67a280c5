#include "paceline/launcher/messages/agent_call.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <span>
#include <utility>
#include <vector>

#include "paceline/engine/core/error.h"
#include "paceline/engine/core/io.h"
#include "paceline/engine/core/send_queue.h"

namespace paceline::launcher {
namespace {

// Sends all bytes at once, because a handshake's messages are smaller than any socket's buffer.
bool send_now(const Fd& socket, std::span<const std::byte> bytes) {
  SendQueue queue;
  queue.add(bytes);
  return queue.flush(socket.get()) && queue.empty();
}

}  // namespace

AgentCall::AgentCall(EventLoop& loop, const Endpoint& agent, const Secret& secret, Report question,
                     std::chrono::nanoseconds patience)
    : loop_(loop),
      agent_(agent),
      secret_(secret),
      question_(std::move(question)),
      patience_(Deadline::after(patience)) {
  go_on();
}

AgentCall::~AgentCall() { hang_up(); }

void AgentCall::go_on() {
  try {
    if (link_) {
      read_answer();
    } else if (handshake_) {
      shake_hands();
    } else {
      go_on_connecting();
    }
  } catch (const Error&) {
    hang_up();
  }
}

void AgentCall::go_on_connecting() {
  if (!attempt_) attempt_.emplace(agent_);
  if (watched_ >= 0) loop_.forget(std::exchange(watched_, -1));  // go_on() may close it
  const int error = attempt_->go_on();
  if (error == EINPROGRESS) return watch(attempt_->socket(), EPOLLOUT);
  if (error != 0) return hang_up();
  socket_ = attempt_->take();
  handshake_.emplace(secret_, kAgentContext, to_string(agent_));
  watch(socket_, EPOLLIN);
  if (!send_now(socket_, handshake_->hello())) hang_up();
}

void AgentCall::shake_hands() {
  while (!handshake_->done()) {
    std::array<std::byte, 64> buffer;
    const auto room = std::span(buffer).first(std::min(buffer.size(), handshake_->wanted()));
    const ssize_t got = receive_some(socket_.get(), room);
    if (got < 0 && errno == EAGAIN) return;
    if (got <= 0) return hang_up();
    const auto answer = handshake_->feed(room.first(static_cast<std::size_t>(got)));
    if (!answer.empty() && !send_now(socket_, answer)) return hang_up();
  }
  link_ = std::make_unique<AgentLink>(std::move(socket_));
  link_->send(encode(question_));
}

void AgentCall::read_answer() {
  for (const std::string& text : link_->read()) answer_ = decode_order(text);
  if (answer_) hang_up();
}

void AgentCall::watch(const Fd& socket, std::uint32_t events) {
  watched_ = socket.get();
  loop_.watch(
      watched_, [this] { go_on(); }, events);
}

void AgentCall::hang_up() {
  if (watched_ >= 0) loop_.forget(std::exchange(watched_, -1));
  ended_ = true;
  attempt_.reset();
  socket_.reset();
  link_.reset();
}

}  // namespace paceline::launcher
