#include "paceline/transport/peer.h"

#include "paceline/core/bytes.h"

namespace paceline {
namespace {

constexpr std::size_t kMaxText = 4096;
constexpr std::uint32_t kMaxCpus = 65536;

}  // namespace

std::string PeerAddress::encode() const {
  ByteWriter writer;
  for (const auto* text : {&host, &process, &host_name, &unix_name, &tcp.host}) {
    writer.put_string(*text);
  }
  writer.put(tcp.port);
  writer.put(static_cast<std::uint32_t>(cpus.size()));
  for (const int cpu : cpus) writer.put(cpu);
  return to_string(std::span<const std::byte>(writer.bytes()));
}

PeerAddress PeerAddress::decode(const std::string& text) {
  ByteReader reader(as_bytes(text));
  PeerAddress peer;
  for (auto* field :
       {&peer.host, &peer.process, &peer.host_name, &peer.unix_name, &peer.tcp.host}) {
    *field = reader.get_string(kMaxText);
  }
  peer.tcp.port = reader.get<std::uint16_t>();
  const auto count = reader.get<std::uint32_t>();
  if (count > kMaxCpus)
    throw Error(ErrorCode::kCorrupt, "a peer's address lists too many processors");
  for (std::uint32_t i = 0; i < count; ++i) peer.cpus.push_back(reader.get<int>());
  if (reader.remaining() > 0) throw Error(ErrorCode::kCorrupt, "a peer's address is too long");
  return peer;
}

}  // namespace paceline
