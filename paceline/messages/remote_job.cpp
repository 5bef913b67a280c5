#include "paceline/messages/remote_job.h"

#include "paceline/core/bytes.h"
#include "paceline/core/check.h"

namespace paceline::launch {
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

void put(ByteWriter& writer, const JobPorts& ports) {
  writer.put(ports.store);
  writer.put(ports.ranks);
}

JobPorts get_ports(ByteReader& reader) {
  JobPorts ports;
  ports.store = reader.get<std::uint16_t>();
  ports.ranks = reader.get<std::uint16_t>();
  return ports;
}

void require_end(const ByteReader& reader) {
  if (reader.remaining() > 0) fail(ErrorCode::kCorrupt, "a message is longer than its contents");
}

}  // namespace

std::string encode(const JobPorts& ports) {
  ByteWriter writer;
  put(writer, ports);
  return to_string(writer.bytes());
}

JobPorts decode_ports(const std::string& bytes) {
  ByteReader reader(as_bytes(bytes));
  const JobPorts ports = get_ports(reader);
  require_end(reader);
  return ports;
}

std::string encode(const RemoteJob& job) {
  ByteWriter writer;
  put(writer, job.arguments);
  writer.put_string(job.directory);
  writer.put(static_cast<std::uint32_t>(job.environment.size()));
  for (const auto& [name, value] : job.environment) {
    writer.put_string(name);
    writer.put_string(value);
  }
  writer.put_string(job.host);
  writer.put_string(job.secret);
  writer.put(static_cast<std::uint32_t>(job.ranks_per_host.size()));
  for (const int count : job.ranks_per_host) writer.put(count);
  put(writer, job.ports);
  writer.put(static_cast<std::uint8_t>(job.goes_on));
  const Endpoint meeting = job.meeting.value_or(Endpoint{});
  writer.put_string(meeting.host);
  writer.put(meeting.port);
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
  job.host = reader.get_string(kMaxText);
  job.secret = reader.get_string(kMaxText);
  for (auto left = reader.get<std::uint32_t>(); left > 0; --left) {
    job.ranks_per_host.push_back(reader.get<int>());
  }
  job.ports = get_ports(reader);
  job.goes_on = reader.get<std::uint8_t>() != 0;
  Endpoint meeting{reader.get_string(kMaxText), 0};
  meeting.port = reader.get<std::uint16_t>();
  if (!meeting.host.empty()) job.meeting = meeting;
  require_end(reader);
  return job;
}

}  // namespace paceline::launch
