#include "paceline/launcher/messages/remote_job.h"

#include "paceline/engine/core/bytes.h"
#include "paceline/engine/core/check.h"

namespace paceline::launcher {
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
