#include "paceline/transport/acceptor.h"

#include <cerrno>
#include <chrono>
#include <cstring>
#include <utility>

#include <sys/socket.h>

#include "paceline/core/bytes.h"
#include "paceline/core/check.h"
#include "paceline/core/log.h"
#include "paceline/core/socket.h"

namespace paceline {
namespace {

using namespace std::chrono_literals;

constexpr auto kHandshakeTimeout = 3s;
constexpr std::size_t kMaxCallers = 256;  // beyond, the oldest is disconnected

// The bytes that are there, at most as many as fit; 0 when none are.
std::size_t receive_some(const Fd& socket, std::span<std::byte> into) {
  const ssize_t got = ::recv(socket.get(), into.data(), into.size(), MSG_DONTWAIT);
  if (got > 0) return static_cast<std::size_t>(got);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return 0;
  fail(ErrorCode::kPeerLost, "{} hung up", peer_name(socket));
}

}  // namespace

Acceptor::Acceptor(Doors doors, const Secret& secret, std::string group)
    : doors_(std::move(doors)), secret_(secret), group_(std::move(group)) {}

void Acceptor::add_to(std::vector<pollfd>& entries) const {
  entries.push_back({doors_.local.get(), POLLIN, 0});
  entries.push_back({doors_.tcp.get(), POLLIN, 0});
  for (const Caller& caller : callers_) entries.push_back({caller.socket.get(), POLLIN, 0});
}

std::vector<Arrival> Acceptor::serve() {
  let_in(doors_.local, doors_.local_context, false);
  let_in(doors_.tcp, doors_.tcp_context, doors_.encrypts_tcp);
  std::vector<Arrival> arrivals;
  for (auto caller = callers_.begin(); caller != callers_.end();) {
    bool done = true;
    try {
      done = advance(*caller);
      if (done) {
        ByteReader reader(caller->hello);
        const auto rank = reader.get<std::int32_t>();
        const auto channel = reader.get<std::int32_t>();
        arrivals.push_back({rank, channel, std::move(caller->socket), {}});
        if (caller->agrees_on_keys) arrivals.back().keys = caller->handshake.session_keys();
      }
    } catch (const Error& error) {
      log::warning(fmt::format("group {}: a connection was refused: {}", group_, error.what()));
      done = true;
    }
    caller = done ? callers_.erase(caller) : std::next(caller);
  }
  return arrivals;
}

void Acceptor::let_in(const Fd& listener, const std::string& context, bool agrees_on_keys) {
  const auto keys = agrees_on_keys ? ServerHandshake::Keys::kAgree : ServerHandshake::Keys::kNone;
  while (Fd socket = accept_connection(listener, Deadline::after(0ms))) {
    if (callers_.size() == kMaxCallers) callers_.pop_front();
    std::string name = peer_name(socket);
    callers_.push_back({std::move(socket), agrees_on_keys,
                        ServerHandshake(secret_, context, std::move(name), keys),
                        Deadline::after(kHandshakeTimeout)});
  }
}

// True when the caller has said all that it must.
bool Acceptor::advance(Caller& caller) {
  while (!caller.handshake.done()) {
    std::array<std::byte, 64> buffer;
    const auto room = std::span(buffer).first(std::min(buffer.size(), caller.handshake.wanted()));
    const std::size_t got = receive_some(caller.socket, room);
    if (got == 0) break;
    const auto answer = caller.handshake.feed(room.first(got));
    // An answer is smaller than any socket's buffer, and nothing else was sent.
    if (::send(caller.socket.get(), answer.data(), answer.size(), MSG_NOSIGNAL | MSG_DONTWAIT) !=
        static_cast<ssize_t>(answer.size())) {
      fail(ErrorCode::kPeerLost, "{} takes no answer", peer_name(caller.socket));
    }
  }
  if (caller.handshake.done() && read_hello(caller)) return true;
  if (caller.deadline.expired()) {
    fail(ErrorCode::kTimeout, "{} did not say who it is within {} s", peer_name(caller.socket),
         kHandshakeTimeout.count());
  }
  return false;
}

bool Acceptor::read_hello(Caller& caller) {
  while (caller.got < kHelloSize) {
    const std::size_t got =
        receive_some(caller.socket, std::span(caller.hello).subspan(caller.got));
    if (got == 0) return false;
    caller.got += got;
  }
  return true;
}

}  // namespace paceline
