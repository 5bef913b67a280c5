#include "paceline/engine/store/store_protocol.h"

#include <cerrno>
#include <cstring>
#include <utility>

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include "paceline/engine/core/bytes.h"
#include "paceline/engine/core/check.h"
#include "paceline/engine/core/system/io.h"
#include "paceline/engine/core/system/socket.h"
#include "paceline/engine/store/store.h"

namespace paceline {

namespace {

std::size_t encoded_size(const std::vector<std::string>& texts) {
  std::size_t size = 4;
  for (const auto& text : texts) size += 4 + text.size();
  return size;
}

void put_strings(ByteWriter& writer, const std::vector<std::string>& texts) {
  writer.put(static_cast<std::uint32_t>(texts.size()));
  for (const auto& text : texts) writer.put_string(text);
}

std::vector<std::string> get_strings(ByteReader& reader, std::size_t limit) {
  const auto count = reader.get<std::uint32_t>();
  if (count > reader.remaining() / 4) {
    fail(ErrorCode::kCorrupt, "a store message claims {} strings in {} bytes", count,
         reader.remaining());
  }
  std::vector<std::string> texts;
  texts.reserve(count);
  for (std::uint32_t i = 0; i < count; ++i) texts.push_back(reader.get_string(limit));
  return texts;
}

void start_frame(ByteWriter& writer, std::size_t body) {
  check(body <= kMaxFrameBytes,
        "a store message of {} bytes is over the limit of {}: name fewer keys in one call", body,
        kMaxFrameBytes);
  writer.put(static_cast<std::uint32_t>(body));
}

// The numbers of keys and values that a command takes; -1 means any number.
struct Shape {
  int keys, values;
};

Shape shape_of(StoreCommand command) {
  switch (command) {
    case StoreCommand::kSet:
      return {-1, -1};
    case StoreCommand::kGet:
    case StoreCommand::kCheck:
    case StoreCommand::kWait:
      return {-1, 0};
    case StoreCommand::kAdd:
    case StoreCommand::kDelete:
      return {1, 0};
    case StoreCommand::kCompareSet:
      return {1, 2};
    case StoreCommand::kAppend:
      return {1, 1};
    case StoreCommand::kNumKeys:
      return {0, 0};
  }
  fail(ErrorCode::kCorrupt, "unknown store command {}", static_cast<int>(command));
}

void check_shape(const StoreRequest& request) {
  const Shape shape = shape_of(request.command);
  const auto fits = [](int wanted, std::size_t size) {
    return wanted < 0 || size == static_cast<std::size_t>(wanted);
  };
  const bool paired =
      request.command != StoreCommand::kSet || request.keys.size() == request.values.size();
  if (!fits(shape.keys, request.keys.size()) || !fits(shape.values, request.values.size()) ||
      !paired) {
    fail(ErrorCode::kCorrupt, "store command {} has {} keys and {} values",
         static_cast<int>(request.command), request.keys.size(), request.values.size());
  }
}

void check_end(const ByteReader& reader) {
  if (reader.remaining() != 0) {
    fail(ErrorCode::kCorrupt, "a store message has {} extra bytes at its end", reader.remaining());
  }
}

}  // namespace

StoreReply error_reply(const Error& error) {
  return {static_cast<std::uint8_t>(1 + static_cast<int>(error.code())), 0, {error.what()}};
}

std::vector<std::byte> encode(const StoreRequest& request) {
  ByteWriter writer;
  start_frame(writer, 1 + 8 + encoded_size(request.keys) + encoded_size(request.values));
  writer.put(request.command);
  writer.put(request.number);
  put_strings(writer, request.keys);
  put_strings(writer, request.values);
  return writer.take();
}

std::vector<std::byte> encode(const StoreReply& reply) {
  ByteWriter writer;
  start_frame(writer, 1 + 8 + encoded_size(reply.values));
  writer.put(reply.status);
  writer.put(reply.number);
  put_strings(writer, reply.values);
  return writer.take();
}

StoreRequest decode_request(std::span<const std::byte> body) {
  ByteReader reader(body);
  StoreRequest request;
  request.command = reader.get<StoreCommand>();
  request.number = reader.get<std::int64_t>();
  request.keys = get_strings(reader, Store::kMaxKeyBytes);
  request.values = get_strings(reader, Store::kMaxValueBytes);
  check_end(reader);
  check_shape(request);
  return request;
}

StoreReply decode_reply(std::span<const std::byte> body) {
  ByteReader reader(body);
  StoreReply reply;
  reply.status = reader.get<std::uint8_t>();
  reply.number = reader.get<std::int64_t>();
  reply.values = get_strings(reader, kMaxFrameBytes);
  check_end(reader);
  return reply;
}

std::size_t frame_length(std::span<const std::byte> header) {
  const auto length = ByteReader(header).get<std::uint32_t>();
  if (length == 0 || length > kMaxFrameBytes) {
    fail(ErrorCode::kCorrupt, "a store message claims {} bytes, the limit is {}", length,
         kMaxFrameBytes);
  }
  return length;
}

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
      std::vector<std::byte> answer;
      if (taken(handshake_->receive(socket_, answer)) == 0) return;
      send(std::move(answer));
      if (handshake_->done()) handshake_.reset();
    } else {
      const std::size_t got = taken(receive_some(socket_.get(), scratch));
      input_.insert(input_.end(), scratch.begin(), scratch.begin() + static_cast<long>(got));
      if (got < scratch.size()) return;
    }
  }
}

// Converts the result of receive_some() to a number of bytes, 0 on EAGAIN; throws for anything
// else.
std::size_t StoreConnection::taken(ssize_t got) const {
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
