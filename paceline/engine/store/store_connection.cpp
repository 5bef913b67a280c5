#include "paceline/engine/store/store_connection.h"

#include <cerrno>
#include <cstring>
#include <utility>

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include "paceline/engine/core/check.h"
#include "paceline/engine/core/io.h"
#include "paceline/engine/core/socket.h"

namespace paceline {
namespace {

constexpr int kReadsAtOnce = 4;
constexpr std::size_t kKeptCapacity = 1 << 20;

void set_tcp_option(const Fd& socket, int name, int value) {
  setsockopt(socket.get(), IPPROTO_TCP, name, &value, sizeof value);
}

}  // namespace

void enable_keepalive(const Fd& socket) {
  const int on = 1;
  setsockopt(socket.get(), SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
  set_tcp_option(socket, TCP_KEEPIDLE, 10);
  set_tcp_option(socket, TCP_KEEPINTVL, 5);
  set_tcp_option(socket, TCP_KEEPCNT, 4);
}

StoreConnection::StoreConnection(Fd socket, const Secret& secret)
    : socket_(std::move(socket)),
      peer_(peer_name(socket_)),
      handshake_(std::make_unique<ServerHandshake>(secret, kStoreContext, peer_)) {
  set_tcp_option(socket_, TCP_NODELAY, 1);
  enable_keepalive(socket_);
}

void StoreConnection::read(std::span<std::byte> scratch) {
  for (int i = 0; i < kReadsAtOnce; ++i) {
    if (handshake_) {
      const auto bytes = scratch.first(handshake_->wanted());
      const std::size_t got = receive(bytes);
      if (got == 0) return;
      send(handshake_->feed(bytes.first(got)));
      if (handshake_->done()) handshake_.reset();
    } else {
      const std::size_t got = receive(scratch);
      input_.insert(input_.end(), scratch.begin(), scratch.begin() + static_cast<long>(got));
      if (got < scratch.size()) return;
    }
  }
}

// 0 when there is nothing now.
std::size_t StoreConnection::receive(std::span<std::byte> bytes) {
  const ssize_t got = receive_some(socket_.get(), bytes);
  if (got > 0) return static_cast<std::size_t>(got);
  if (got < 0 && errno == EAGAIN) return 0;
  const char* cause = got == 0 ? "closed" : std::strerror(errno);
  fail(ErrorCode::kPeerLost, "the connection of {}: {}", peer_, cause);
}

std::optional<StoreRequest> StoreConnection::next_request() {
  const auto unread = std::span<const std::byte>(input_).subspan(consumed_);
  if (unread.size() < kFrameHeaderBytes) return std::nullopt;
  const std::size_t length = frame_length(unread.first(kFrameHeaderBytes));
  if (unread.size() < kFrameHeaderBytes + length) return std::nullopt;
  auto request = decode_request(unread.subspan(kFrameHeaderBytes, length));
  consumed_ += kFrameHeaderBytes + length;
  if (consumed_ == input_.size()) {
    input_.clear();
    if (input_.capacity() > kKeptCapacity) input_.shrink_to_fit();
    consumed_ = 0;
  }
  return request;
}

void StoreConnection::send(std::vector<std::byte> bytes) {
  output_.add(std::move(bytes));
  flush();
}

void StoreConnection::flush() {
  if (output_.flush(socket_.get())) return;
  fail(ErrorCode::kPeerLost, "the connection of {}: {}", peer_, std::strerror(errno));
}

}  // namespace paceline
