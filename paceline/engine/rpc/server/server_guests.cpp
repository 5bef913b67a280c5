#include <array>
#include <cerrno>

#include <sys/epoll.h>

#include "paceline/engine/core/check.h"
#include "paceline/engine/core/log.h"
#include "paceline/engine/core/system/io.h"
#include "paceline/engine/core/system/socket.h"
#include "paceline/engine/rpc/server/server.h"

namespace paceline::rpc {

namespace {

constexpr std::chrono::seconds kPatience(3);

}  // namespace

Guest::Guest(std::shared_ptr<Server> server, Fd socket, bool is_encrypted)
    : server_(std::move(server)),
      descriptor_(socket.get()),
      is_encrypted_(is_encrypted),
      patience_(Deadline::after(kPatience)),
      socket_(std::move(socket)) {
  const Setup& setup = *server_->setup_;
  handshake_.emplace(setup.key, connection_context(setup.self, is_encrypted), peer_name(socket_),
                     is_encrypted ? HandshakeSide::Keys::kAgree : HandshakeSide::Keys::kNone);
}

// Takes the bytes of the handshake that have arrived.
void Guest::greet() {
  std::array<std::byte, 128> buffer;
  while (!handshake_->done()) {
    const auto into = std::span(buffer).first(std::min(buffer.size(), handshake_->wanted()));
    const ssize_t got = receive_some(descriptor_, into);
    if (got < 0 && errno == EAGAIN) return;
    if (got <= 0) fail(ErrorCode::kPeerLost, "it closed the connection");
    const auto answer = handshake_->feed(into.first(static_cast<std::size_t>(got)));
    // The answers always fit into the buffer of a new socket.
    if (send_some(descriptor_, answer) != static_cast<ssize_t>(answer.size())) {
      fail(ErrorCode::kPeerLost, "it does not read the answer");
    }
  }
  std::unique_ptr<Cipher> cipher;
  if (is_encrypted_) cipher = std::make_unique<Cipher>(kCallCipher, handshake_->session_keys());
  connection_ =
      std::make_unique<Connection>(std::move(socket_), std::move(cipher),
                                   longest_frame(*server_->setup_), true, server_->setup_->spin);
  handshake_.reset();
  is_known_.store(true, std::memory_order_release);
}

void Guest::ready() {
  const auto self = shared_from_this();
  if (!is_known()) {
    try {
      greet();
    } catch (const std::exception& error) {
      log::warning(fmt::format("{}: refused a connection that did not authenticate: {}",
                               server_->setup_->self.name, error.what()));
      return server_->leave(*this);
    }
    if (!is_known()) return;
  }
  receive(nullptr);
}

bool Guest::wait_until_ready() {
  if (!is_known() || connection_->has_unsent()) return false;
  const auto before = connection_->bytes_received();
  const auto deadline = Deadline::after(2 * Connection::kLongestWait);  // for one full receive()
  do {
    if (!receive(&deadline)) return false;
  } while (connection_->bytes_received() == before &&
           deadline.remaining() > Connection::kLongestWait);
  connection_->look_without_bell();
  return connection_->bytes_received() != before;
}

void Guest::watch_input(bool watched) {
  is_watched_ = watched;
  update_events();
}

// Receives frames; returns false when the connection has ended.
bool Guest::receive(const Deadline* deadline) {
  try {
    const bool is_there = is_closed_there() ? connection_->receive_to_the_end(*this)
                                            : connection_->receive(*this, deadline);
    if (!is_there) {
      server_->leave(*this);
      return false;
    }
  } catch (const std::exception& error) {
    log::warning(fmt::format("{}: closed a connection{}: {}", server_->setup_->self.name,
                             session ? " of worker " + session->caller.name : "", error.what()));
    server_->leave(*this);
    return false;
  }
  send();
  return true;
}

void Guest::take(const Frame& frame, Payload payload) {
  server_->take(shared_from_this(), frame, std::move(payload));
}

void Guest::send() {
  if (!connection_->flush())
    return connection_->shut_down();  // the reading thread then sees the end
  if (connection_->has_unsent() != is_sending_) update_events();
}

void Guest::update_events() {
  is_sending_ = connection_->has_unsent();
  server_->pool_->change(*this, (is_watched_ ? static_cast<std::uint32_t>(EPOLLIN) : 0) |
                                    (is_sending_ ? connection_->event_of_room() : 0));
}

}  // namespace paceline::rpc
