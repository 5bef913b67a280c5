#include "paceline/launcher/messages/remote_frames.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <span>

#include "paceline/engine/core/bytes.h"
#include "paceline/engine/core/check.h"

namespace paceline::launcher {

namespace {

constexpr std::string_view kKinds = "HAKJSIEP12WNMODTX";
constexpr std::size_t kFrameHeader = 1 + sizeof(std::uint32_t);
constexpr std::uint32_t kMaxPayload = 32 << 20;
constexpr std::size_t kKeptSkipped = 2000;

}  // namespace

// When it returned is known where it was asked.
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
  return {.asked = reading(), .heard = reading(), .answered = reading()};
}

std::string encode(const Endpoint& endpoint) {
  ByteWriter writer;
  writer.put_string(endpoint.host);
  writer.put(endpoint.port);
  return to_string(writer.bytes());
}

Endpoint decode_endpoint(const std::string& bytes) {
  ByteReader reader(as_bytes(bytes));
  std::string host = reader.get_string(kMaxPayload);
  return {std::move(host), reader.get<std::uint16_t>()};
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
  // The greeting's beginning may be at the end of what has arrived.
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

namespace {

constexpr std::size_t kMaxText = 16 << 20;

void put(ByteWriter& writer, const std::vector<std::string>& texts) {
  writer.put(static_cast<std::uint32_t>(texts.size()));
  for (const std::string& text : texts) writer.put_string(text);
}

std::vector<std::string> get_texts(ByteReader& reader) {
  std::vector<std::string> texts;
  for (auto left = reader.get<std::uint32_t>(); left > 0; --left) {
    texts.push_back(reader.get_string(kMaxText));
  }
  return texts;
}

void put(ByteWriter& writer, const HostPart& part) {
  writer.put_string(part.host);
  writer.put_string(part.secret);
  writer.put(static_cast<std::uint32_t>(part.ranks_per_host.size()));
  for (const int count : part.ranks_per_host) writer.put(count);
  const Endpoint meeting = part.meeting.value_or(Endpoint{});
  writer.put_string(meeting.host);
  writer.put(meeting.port);
}

HostPart get_part(ByteReader& reader) {
  HostPart part;
  part.host = reader.get_string(kMaxText);
  part.secret = reader.get_string(kMaxText);
  for (auto left = reader.get<std::uint32_t>(); left > 0; --left) {
    part.ranks_per_host.push_back(reader.get<int>());
  }
  Endpoint meeting{reader.get_string(kMaxText), 0};
  meeting.port = reader.get<std::uint16_t>();
  if (!meeting.host.empty()) part.meeting = meeting;
  return part;
}

}  // namespace

std::string encode(const RemoteJob& job) {
  ByteWriter writer;
  put(writer, job.arguments);
  writer.put_string(job.directory);
  writer.put(static_cast<std::uint32_t>(job.environment.size()));
  for (const auto& [name, value] : job.environment) {
    writer.put_string(name);
    writer.put_string(value);
  }
  put(writer, job.part);
  writer.put(job.port);
  return to_string(writer.bytes());
}

RemoteJob decode_job(const std::string& bytes) {
  ByteReader reader(as_bytes(bytes));
  RemoteJob job;
  job.arguments = get_texts(reader);
  job.directory = reader.get_string(kMaxText);
  for (auto left = reader.get<std::uint32_t>(); left > 0; --left) {
    std::string name = reader.get_string(kMaxText);
    job.environment[std::move(name)] = reader.get_string(kMaxText);
  }
  job.part = get_part(reader);
  job.port = reader.get<std::uint16_t>();
  if (reader.remaining() > 0) fail(ErrorCode::kCorrupt, "a message is longer than its contents");
  return job;
}

}  // namespace paceline::launcher
