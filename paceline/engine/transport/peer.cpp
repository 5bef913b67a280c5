#include "paceline/engine/transport/peer.h"

#include "paceline/engine/core/bytes.h"

namespace paceline {
namespace {

constexpr std::size_t kMaxPeerText = 4096;
constexpr std::uint32_t kMaxCpus = 65536;
constexpr std::uint32_t kMaxMembers = 1 << 20;

void put_numbers(ByteWriter& writer, const std::vector<int>& numbers) {
  writer.put(static_cast<std::uint32_t>(numbers.size()));
  for (const int number : numbers) writer.put(number);
}

std::vector<int> get_numbers(ByteReader& reader, std::uint32_t most, const char* what) {
  const auto count = reader.get<std::uint32_t>();
  if (count > most) {
    throw Error(ErrorCode::kCorrupt, std::string("a peer's address lists too many ") + what);
  }
  std::vector<int> numbers;
  for (std::uint32_t i = 0; i < count; ++i) numbers.push_back(reader.get<int>());
  return numbers;
}

}  // namespace

std::string PeerAddress::encode() const {
  ByteWriter writer;
  for (const auto* text : {&host, &process, &host_name, &unix_name, &tcp.host}) {
    writer.put_string(*text);
  }
  writer.put(tcp.port);
  writer.put(cipher);
  writer.put(transport);
  writer.put(static_cast<std::uint8_t>(tcp_streams));
  put_numbers(writer, cpus);
  put_numbers(writer, members);
  return to_string(std::span<const std::byte>(writer.bytes()));
}

PeerAddress PeerAddress::decode(const std::string& text) {
  ByteReader reader(as_bytes(text));
  PeerAddress peer;
  for (auto* field :
       {&peer.host, &peer.process, &peer.host_name, &peer.unix_name, &peer.tcp.host}) {
    *field = reader.get_string(kMaxPeerText);
  }
  peer.tcp.port = reader.get<std::uint16_t>();
  peer.cipher = reader.get<CipherKind>();
  if (peer.cipher > CipherKind::kAes256Gcm) {
    throw Error(ErrorCode::kCorrupt, "a peer's address names no known cipher");
  }
  peer.transport = reader.get<TransportKind>();
  if (peer.transport > TransportKind::kUcx) {
    throw Error(ErrorCode::kCorrupt, "a peer's address names no known transport");
  }
  peer.tcp_streams = reader.get<std::uint8_t>();
  if (peer.tcp_streams < 1 || peer.tcp_streams > kMaxStreams) {
    throw Error(ErrorCode::kCorrupt, "a peer's address has no possible number of TCP streams");
  }
  peer.cpus = get_numbers(reader, kMaxCpus, "processors");
  peer.members = get_numbers(reader, kMaxMembers, "members");
  if (reader.remaining() > 0) throw Error(ErrorCode::kCorrupt, "a peer's address is too long");
  return peer;
}

}  // namespace paceline
