#include "paceline/launcher/messages/agent_link.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <span>
#include <sstream>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include "paceline/engine/core/bytes.h"
#include "paceline/engine/core/check.h"
#include "paceline/engine/core/error.h"
#include "paceline/engine/core/system/io.h"
#include "paceline/engine/core/system/socket.h"
#include "paceline/launcher/messages/agent_messages.h"

namespace paceline::launcher {

namespace {

constexpr std::size_t kHeader = 4;

std::uint32_t length_in(const std::string& bytes) {
  std::uint32_t length = 0;
  for (std::size_t i = 0; i < kHeader; ++i) {
    length |= static_cast<std::uint32_t>(static_cast<unsigned char>(bytes[i])) << 8 * i;
  }
  return length;
}

}  // namespace

AgentLink::AgentLink(Fd socket) : socket_(std::move(socket)), peer_(peer_name(socket_)) {
  const int on = 1;
  setsockopt(socket_.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

AgentLink::AgentLink(Fd socket, const Secret& secret) : AgentLink(std::move(socket)) {
  handshake_ = std::make_unique<ServerHandshake>(secret, kAgentContext, peer_);
}

// Returns false when no bytes have arrived.
bool AgentLink::shake_hands() {
  std::vector<std::byte> answer;
  const ssize_t got = handshake_->receive(socket_, answer);
  if (got < 0 && errno == EAGAIN) return false;
  if (got <= 0) {
    fail(ErrorCode::kPeerLost,
         "{} hung up before it proved that it belongs to the job: an agent with another secret "
         "(PACELINE_SECRET_FILE must be the same on every node), or no agent at all",
         peer_);
  }
  output_.add(std::move(answer));
  flush();
  if (handshake_->done()) handshake_.reset();
  return true;
}

bool AgentLink::receive() {
  std::array<char, 16 << 10> buffer;
  const ssize_t got = receive_some(socket_.get(), std::as_writable_bytes(std::span(buffer)));
  if (got < 0 && errno == EAGAIN) return false;
  if (got <= 0) {
    closed_ = got == 0 ? "the connection was closed" : std::strerror(errno);
    return false;
  }
  last_heard_ = Deadline::Clock::now();
  silence_.heard();
  standstill_.heard();
  input_.append(buffer.data(), static_cast<std::size_t>(got));
  return true;
}

std::vector<std::string> AgentLink::read() {
  while (handshake_) {
    if (!shake_hands()) return {};
  }
  std::vector<std::string> messages;
  bool more = true;
  while (more && input_.size() < kHeader + kMaxAgentMessage) more = receive();
  std::size_t taken = 0;
  while (input_.size() - taken >= kHeader) {
    const std::size_t length = length_in(input_.substr(taken, kHeader));
    if (length > kMaxAgentMessage) {
      fail(ErrorCode::kCorrupt, "{} announces a message of {} bytes", peer_, length);
    }
    if (input_.size() - taken < kHeader + length) break;
    std::string message = input_.substr(taken + kHeader, length);
    if (!message.empty() && !take_clock(message)) messages.push_back(std::move(message));
    taken += kHeader + length;
  }
  input_.erase(0, taken);
  // Returns the messages that arrived before the connection ended; a later call reports the end.
  if (messages.empty() && !closed_.empty()) fail(ErrorCode::kPeerLost, "{}: {}", peer_, closed_);
  return messages;
}

void AgentLink::compare_clocks() { send(fmt::format("?{}", clock_reading().count())); }

// Handles a message about clocks: "?" asks for this clock's reading, "!" answers. Returns false for
// any other message. Requires: last_heard_ is the moment at which `message` was read.
bool AgentLink::take_clock(const std::string& message) {
  if (message.front() != '?' && message.front() != '!') return false;
  std::istringstream text(message.substr(1));
  std::int64_t asked = 0, heard = 0, answered = 0;
  const bool question = message.front() == '?';
  if (!(text >> asked) || (!question && !(text >> heard >> answered)) || !text.eof()) {
    fail(ErrorCode::kCorrupt, "{} sent invalid clock readings", peer_);
  }
  if (question) {
    send(fmt::format("!{} {} {}", asked, clock_reading(last_heard_).count(),
                     clock_reading().count()));
  } else {
    using std::chrono::nanoseconds;
    clock_.take({nanoseconds(asked), nanoseconds(heard), nanoseconds(answered),
                 clock_reading(last_heard_)});
  }
  return true;
}

void AgentLink::send(const std::string& text) {
  ByteWriter frame;
  frame.put_string(text);
  output_.add(frame.take());
  flush();
}

void AgentLink::flush() {
  if (output_.flush(socket_.get())) return;
  fail(ErrorCode::kPeerLost, "{}: {}", peer_, std::strerror(errno));
}

namespace {

// Sends all bytes, or returns false. A message of the handshake is smaller than any socket's
// buffer, so no part of it needs to wait.
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
  if (watched_ >= 0) loop_.forget(std::exchange(watched_, -1));  // go_on() may close the socket
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
    std::vector<std::byte> answer;
    const ssize_t got = handshake_->receive(socket_, answer);
    if (got < 0 && errno == EAGAIN) return;
    if (got <= 0) return hang_up();
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
