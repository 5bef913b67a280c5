#include "paceline/engine/store/tcp_store.h"

#include <algorithm>
#include <array>
#include <thread>
#include <utility>

#include <poll.h>

#include "paceline/engine/core/authentication.h"
#include "paceline/engine/core/awake_clock.h"
#include "paceline/engine/core/check.h"
#include "paceline/engine/store/memory_store.h"
#include "paceline/engine/store/store_protocol.h"

namespace paceline {
namespace {

using namespace std::chrono_literals;

constexpr std::size_t kKeptConnections = 4;
constexpr auto kHandshakeTimeout = 10s;
// A server that was reached before counts as lost once it has refused connections for this long. A
// connection attempt that gets no answer proves nothing, however long it lasts: the network may
// have lost its first packet, or the backlog is full.
constexpr auto kRefusedFor = 500ms;
// The server reports missing keys only at the deadline of a wait, so the client waits this much
// longer for the answer.
constexpr auto kAnswerGrace = 1s;

std::chrono::milliseconds plus_grace(std::chrono::milliseconds timeout) {
  return std::clamp<std::chrono::milliseconds>(timeout, 0ms, std::chrono::hours(24 * 365 * 29)) +
         kAnswerGrace;
}

Deadline sooner(Deadline deadline, std::chrono::nanoseconds limit) {
  return Deadline::after(std::min(deadline.remaining(), limit));
}

StoreReply receive_reply(const Fd& connection, Deadline deadline) {
  std::array<std::byte, kFrameHeaderBytes> header;
  receive_all(connection, header, deadline);
  std::vector<std::byte> body(frame_length(header));
  receive_all(connection, body, deadline);
  return decode_reply(body);
}

}  // namespace

TcpStore::TcpStore(Endpoint endpoint, const Secret& secret, std::chrono::milliseconds timeout)
    : Store(timeout), endpoint_(std::move(endpoint)), secret_(secret) {
  Fd first = connect_until(Deadline::after(timeout), false);
  local_address_ = paceline::local_address(first);
  keep_connection(std::move(first));
}

// The client checks the limits as well, because the server would close the connection over a frame
// that exceeds them.
StoreReply TcpStore::run(const StoreRequest& request) {
  check_keys(request.keys);
  for (const auto& value : request.values) {
    paceline::check(value.size() <= kMaxValueBytes,
                    "a store's value may have up to {} bytes, not {}", kMaxValueBytes,
                    value.size());
  }
  const auto limit =
      request.waits() ? plus_grace(std::chrono::milliseconds(request.number)) : timeout();
  auto reply = exchange(request, Deadline::after(limit));
  const std::size_t wanted = request.command == StoreCommand::kGet          ? request.keys.size()
                             : request.command == StoreCommand::kCompareSet ? 1
                                                                            : reply.values.size();
  if (reply.status == 0 && reply.values.size() != wanted) {
    fail(ErrorCode::kCorrupt, "the store at {} answered with {} values instead of {}",
         to_string(endpoint_), reply.values.size(), wanted);
  }
  if (reply.status == 0) return reply;
  const bool known = reply.status <= 1 + static_cast<int>(ErrorCode::kSystem);
  if (!known) {
    fail(ErrorCode::kCorrupt, "the store at {} answered with status {}", to_string(endpoint_),
         reply.status);
  }
  const std::string message = reply.values.empty() ? "no reason given" : reply.values.front();
  throw Error(static_cast<ErrorCode>(reply.status - 1),
              fmt::format("{} (store at {})", message, to_string(endpoint_)));
}

StoreReply TcpStore::exchange(const StoreRequest& request, Deadline deadline) {
  const auto frame = encode(request);
  Fd connection = take_connection(deadline);
  try {
    send_all(connection, frame, deadline);
    auto reply = receive_reply(connection, deadline);
    keep_connection(std::move(connection));
    return reply;
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kPeerLost) lose(error.what());
    if (error.code() != ErrorCode::kTimeout) throw;
    const auto about = request.keys.empty() ? "" : " about " + quote_keys(request.keys);
    fail(ErrorCode::kTimeout, "the store at {} did not answer in time{}", to_string(endpoint_),
         about);
  }
}

Fd TcpStore::take_connection(Deadline deadline) {
  {
    const std::lock_guard lock(mutex_);
    if (!lost_.empty()) throw Error(ErrorCode::kPeerLost, lost_);
    if (!idle_.empty()) {
      Fd connection = std::move(idle_.back());
      idle_.pop_back();
      return connection;
    }
  }
  return connect_until(deadline, true);
}

void TcpStore::keep_connection(Fd connection) {
  const std::lock_guard lock(mutex_);
  if (idle_.size() < kKeptConnections) idle_.push_back(std::move(connection));
}

std::size_t TcpStore::num_idle_connections() {
  const std::lock_guard lock(mutex_);
  return idle_.size();
}

// A busy server may drop a connection before its handshake is done (if there are too many such
// connections), so the client tries again until the deadline. It also retries refused connections,
// but if the server was reached before, only for kRefusedFor; after that the store is lost.
Fd TcpStore::connect_until(const Deadline wanted, bool reached_before) {
  const auto begun = Deadline::Clock::now();
  for (auto pause = 1ms;; pause = std::min(pause * 2, 100ms)) {
    const Deadline deadline = put_off_since(begun, wanted);
    Fd connection = reached_before ? reconnect(deadline) : connect_tcp(endpoint_, deadline);
    Vigil vigil;
    try {
      authenticate_as_client(connection, secret_, kStoreContext,
                             sooner(put_off_since(begun, wanted), kHandshakeTimeout));
      enable_keepalive(connection);
      return connection;
    } catch (const Error& error) {
      if (error.code() == ErrorCode::kInvalid) {
        fail(ErrorCode::kInvalid, "the store at {} refused: {}", to_string(endpoint_),
             error.what());
      }
      vigil.look();
      if (put_off_since(begun, wanted).remaining() <= pause) {
        fail(ErrorCode::kTimeout, "the store at {} did not complete a handshake in time: {}",
             to_string(endpoint_), error.what());
      }
    }
    std::this_thread::sleep_for(pause);  // no event signals that the server has room
    vigil.look();
  }
}

Fd TcpStore::reconnect(Deadline deadline) {
  try {
    return connect_tcp(endpoint_, deadline, kRefusedFor);
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kPeerLost) lose(error.what());
    throw;
  }
}

void TcpStore::lose(const std::string& cause) {
  const std::lock_guard lock(mutex_);
  if (lost_.empty()) {
    lost_ = fmt::format("the store at {} is lost because its process ended: {}",
                        to_string(endpoint_), cause);
  }
  idle_.clear();
  throw Error(ErrorCode::kPeerLost, lost_);
}

}  // namespace paceline
