#include "paceline/launcher/messages/remote_frames.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <span>

#include "paceline/engine/core/bytes.h"
#include "paceline/engine/core/check.h"
#include "paceline/launcher/messages/json_values.h"

namespace paceline::launcher {

namespace {

constexpr std::string_view kKinds = "HAKJSIEP12WNMODTX";
constexpr std::size_t kFrameHeader = 1 + sizeof(std::uint32_t);
constexpr std::uint32_t kMaxPayload = 32 << 20;
constexpr std::size_t kKeptSkipped = 2000;

void require_end(const ByteReader& reader) {
  if (reader.remaining() > 0) fail(ErrorCode::kCorrupt, "a message continues after its end");
}

}  // namespace

// `returned` is not sent: the host that asked reads it from its own clock.
std::string encode(const ClockExchange& exchange) {
  const std::array<std::int64_t, 3> readings = {exchange.asked.count(), exchange.heard.count(),
                                                exchange.answered.count()};
  ByteWriter writer;
  writer.put_bytes(std::as_bytes(std::span(readings)));
  return to_string(writer.bytes());
}

ClockExchange decode_clock_exchange(const std::string& bytes) {
  ByteReader reader(as_bytes(bytes));
  const auto reading = [&] { return std::chrono::nanoseconds(reader.get<std::int64_t>()); };
  const ClockExchange exchange{.asked = reading(), .heard = reading(), .answered = reading()};
  require_end(reader);
  return exchange;
}

std::string encode(const Endpoint& endpoint) {
  ByteWriter writer;
  writer.put_string(endpoint.host);
  writer.put(endpoint.port);
  return to_string(writer.bytes());
}

Endpoint decode_endpoint(const std::string& bytes) {
  ByteReader reader(as_bytes(bytes));
  Endpoint endpoint{.host = reader.get_string(kMaxPayload), .port = reader.get<std::uint16_t>()};
  require_end(reader);
  return endpoint;
}

std::string encode_frame(FrameKind kind, std::string_view payload) {
  check(payload.size() <= kMaxPayload, "a message for another host is larger than {} bytes",
        kMaxPayload);
  const auto length = static_cast<std::uint32_t>(payload.size());
  std::string bytes(kFrameHeader, static_cast<char>(kind));
  std::memcpy(bytes.data() + 1, &length, sizeof length);
  return bytes.append(payload);
}

void FrameReader::feed(std::string_view bytes) {
  if (taken_ == buffer_.size()) {
    buffer_.clear();
    taken_ = 0;
  }
  buffer_.append(bytes);
}

bool FrameReader::find_greeting() {
  const auto found = buffer_.find(greeting_);
  // The bytes that have arrived may end with the beginning of the greeting.
  const auto end = found != std::string::npos
                       ? found
                       : buffer_.size() - std::min(buffer_.size(), greeting_.size() - 1);
  skipped_.append(buffer_, 0, end);
  if (skipped_.size() > kKeptSkipped) skipped_.erase(0, skipped_.size() - kKeptSkipped);
  buffer_.erase(0, end);
  if (found == std::string::npos) return false;
  buffer_.erase(0, greeting_.size());
  greeting_ = {};
  return true;
}

std::optional<Frame> FrameReader::next() {
  if (!greeting_.empty() && !find_greeting()) return std::nullopt;
  if (buffer_.size() - taken_ < kFrameHeader) return std::nullopt;
  const char kind = buffer_[taken_];
  std::uint32_t length = 0;
  std::memcpy(&length, buffer_.data() + taken_ + 1, sizeof length);
  if (kKinds.find(kind) == std::string_view::npos || length > kMaxPayload) {
    fail(ErrorCode::kCorrupt, "received bytes that are not a launcher's message");
  }
  if (buffer_.size() - taken_ - kFrameHeader < length) return std::nullopt;
  Frame frame{static_cast<FrameKind>(kind), buffer_.substr(taken_ + kFrameHeader, length)};
  taken_ += kFrameHeader + length;
  if (taken_ > buffer_.size() / 2) {
    buffer_.erase(0, taken_);
    taken_ = 0;
  }
  return frame;
}

// The job is sent as CBOR, whose strings may contain any bytes, because arguments of programs may.

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(HostPart, host, secret, ranks_per_host, meeting)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(RemoteJob, arguments, directory, environment, part, port)

std::string encode(const RemoteJob& job) {
  std::string bytes;
  nlohmann::json::to_cbor(job, bytes);
  return bytes;
}

RemoteJob decode_job(const std::string& bytes) {
  try {
    return nlohmann::json::from_cbor(bytes).get<RemoteJob>();
  } catch (const nlohmann::json::exception& error) {
    fail(ErrorCode::kCorrupt, "cannot read the job for another host: {}", error.what());
  }
}

}  // namespace paceline::launcher
