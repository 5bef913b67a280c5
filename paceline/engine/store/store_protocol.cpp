#include "paceline/engine/store/store_protocol.h"

#include "paceline/engine/core/bytes.h"
#include "paceline/engine/core/check.h"
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
    fail(ErrorCode::kCorrupt, "a store message counts {} strings in {} bytes", count,
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

// How many keys and values a command takes; -1 is any number.
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
  fail(ErrorCode::kCorrupt, "the store knows no command {}", static_cast<int>(command));
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
    fail(ErrorCode::kCorrupt, "store command {} came with {} keys and {} values",
         static_cast<int>(request.command), request.keys.size(), request.values.size());
  }
}

void check_end(const ByteReader& reader) {
  if (reader.remaining() != 0) {
    fail(ErrorCode::kCorrupt, "a store message has {} bytes too many", reader.remaining());
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

}  // namespace paceline
