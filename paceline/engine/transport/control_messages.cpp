#include "paceline/engine/transport/control_messages.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "paceline/engine/core/bytes.h"

namespace paceline {

namespace {

// A notice consists of the ErrorCode (1 byte), the length of the text (2 bytes), the number of
// ranks (1 byte), the text, and the ranks (4 bytes each).
constexpr std::size_t kHeader = 4;
constexpr std::size_t kMaxRanks = 64;
constexpr std::size_t kMaxText = kMaxNoticeBytes - kHeader - kMaxRanks * sizeof(std::int32_t);
constexpr char kGoodbye = 0x7f;  // a goodbye is this byte alone, which is not a valid ErrorCode

bool begins_with_code(std::span<const char> bytes) {
  return static_cast<unsigned char>(bytes[0]) <= static_cast<unsigned char>(ErrorCode::kSystem);
}

// The lengths in the header of a notice. Requires: `bytes` begins with a whole header.
struct NoticeLengths {
  explicit NoticeLengths(std::span<const char> bytes)
      : text(static_cast<std::size_t>(static_cast<unsigned char>(bytes[1])) |
             static_cast<std::size_t>(static_cast<unsigned char>(bytes[2])) << 8),
        ranks(static_cast<unsigned char>(bytes[3])) {}

  bool are_allowed() const { return text <= kMaxText && ranks <= kMaxRanks; }
  std::size_t whole() const { return kHeader + text + ranks * sizeof(std::int32_t); }

  std::size_t text, ranks;
};

}  // namespace

std::string encode_notice(const Error& cause) {
  std::string text = cause.what();
  text.resize(std::min(text.size(), kMaxText));
  std::vector<int> ranks = cause.ranks();
  ranks.resize(std::min(ranks.size(), kMaxRanks));
  ByteWriter notice;
  notice.put(static_cast<std::uint8_t>(cause.code()));
  notice.put(static_cast<std::uint16_t>(text.size()));
  notice.put(static_cast<std::uint8_t>(ranks.size()));
  notice.put_bytes(as_bytes(text));
  for (const int rank : ranks) notice.put(static_cast<std::int32_t>(rank));
  return to_string(notice.bytes());
}

std::string encode_goodbye() { return std::string(1, kGoodbye); }

bool is_whole_notice(std::span<const char> bytes) {
  if (bytes.empty()) return false;
  if (!begins_with_code(bytes)) return true;  // a goodbye, or bytes that are not a notice
  if (bytes.size() < kHeader) return false;
  const NoticeLengths lengths(bytes);
  return !lengths.are_allowed() || bytes.size() >= lengths.whole();
}

std::optional<Notice> decode_notice(std::span<const char> bytes) {
  if (!is_whole_notice(bytes)) return {};
  if (bytes[0] == kGoodbye) return Notice{.goodbye = true, .code = {}, .text = {}, .ranks = {}};
  if (!begins_with_code(bytes)) return {};
  const NoticeLengths lengths(bytes);
  if (!lengths.are_allowed()) return {};
  Notice notice{.goodbye = false,
                .code = static_cast<ErrorCode>(bytes[0]),
                .text = std::string(bytes.subspan(kHeader).data(), lengths.text),
                .ranks = {}};
  ByteReader reader(as_bytes(std::string_view(bytes.data(), bytes.size()))
                        .subspan(kHeader + lengths.text, lengths.ranks * sizeof(std::int32_t)));
  while (reader.remaining() > 0) notice.ranks.push_back(reader.get<std::int32_t>());
  return notice;
}

namespace {

// Questions, answers and reasons begin with a byte that is not a valid ErrorCode. A question is
// that byte alone.
constexpr char kQuestion = 0x7e;
// An answer continues with the number of ranks (1 byte) and the ranks (4 bytes each); the highest
// bit of a rank is set if the rank has arrived.
constexpr char kAnswer = 0x7d;
constexpr std::size_t kAnswerHead = 2;
constexpr std::size_t kMaxAwaitedRanks = 64;
constexpr std::uint32_t kHasArrived = 0x80000000;
// A reason continues with the length of the text (2 bytes) and the text.
constexpr char kReason = 0x7c;
constexpr std::size_t kReasonHead = 3;

// Returns the size of the question, answer or reason at the front of `bytes`, or 0 if the bytes
// that determine its size have not all arrived.
std::size_t size_of_message(std::string_view bytes) {
  const auto byte = [&](std::size_t at) {
    return static_cast<std::size_t>(static_cast<unsigned char>(bytes[at]));
  };
  if (bytes[0] == kQuestion) return 1;
  if (bytes[0] == kAnswer) {
    return bytes.size() < kAnswerHead ? 0 : kAnswerHead + sizeof(std::uint32_t) * byte(1);
  }
  return bytes.size() < kReasonHead ? 0 : kReasonHead + byte(1) + (byte(2) << 8);
}

// Decodes an answer; returns nullopt if a number in it is not a rank of the group.
std::optional<std::vector<Awaited>> decode_answer(std::string_view bytes, int world_size) {
  ByteReader reader(as_bytes(bytes.substr(kAnswerHead)));
  std::vector<Awaited> awaited;
  while (reader.remaining() > 0) {
    const auto word = reader.get<std::uint32_t>();
    const auto rank = word & ~kHasArrived;
    if (rank >= static_cast<std::uint32_t>(world_size)) return {};
    awaited.push_back({static_cast<int>(rank), (word & kHasArrived) != 0});
  }
  return awaited;
}

}  // namespace

std::string Inquiry::encode_question() { return std::string(1, kQuestion); }

std::string Inquiry::encode_answer(std::span<const Awaited> awaited) {
  awaited = awaited.first(std::min(awaited.size(), kMaxAwaitedRanks));
  ByteWriter writer;
  writer.put(kAnswer);
  writer.put(static_cast<std::uint8_t>(awaited.size()));
  for (const Awaited& one : awaited) {
    writer.put(static_cast<std::uint32_t>(one.rank) | (one.has_arrived ? kHasArrived : 0));
  }
  return to_string(writer.bytes());
}

std::string Inquiry::encode_reason(const std::string& text) {
  const std::string_view cut = std::string_view(text).substr(0, kMaxNoticeBytes - kReasonHead);
  ByteWriter writer;
  writer.put(kReason);
  writer.put(static_cast<std::uint16_t>(cut.size()));
  return to_string(writer.bytes()).append(cut);
}

std::string Inquiry::take(int peer, std::string_view bytes) {
  std::string left = std::exchange(unfinished_[peer], {}).append(bytes);
  while (!left.empty() && (left[0] == kQuestion || left[0] == kAnswer || left[0] == kReason)) {
    const std::size_t size = size_of_message(left);
    if (size == 0 || left.size() < size) {
      unfinished_[peer] = std::move(left);
      return {};
    }
    const auto message = std::string_view(left).substr(0, size);
    if (message[0] == kQuestion) {
      askers_.insert(peer);
    } else if (message[0] == kReason) {
      reasons_.emplace(peer, message.substr(kReasonHead));
    } else {
      auto awaited = decode_answer(message, world_size_);
      if (!awaited) return left;  // decode_notice() refuses these bytes
      answers_[peer] = std::move(*awaited);
    }
    left.erase(0, size);
  }
  if (is_whole_notice(left)) return left;
  unfinished_[peer] = std::move(left);
  return {};
}

std::string Inquiry::reason_of(int peer) const {
  const auto found = reasons_.find(peer);
  return found == reasons_.end() ? "" : found->second;
}

std::optional<std::vector<Awaited>> Inquiry::answer_of(int peer) const {
  const auto found = answers_.find(peer);
  if (found == answers_.end()) return {};
  return found->second;
}

std::vector<int> Inquiry::take_askers() {
  std::vector<int> ranks(askers_.begin(), askers_.end());
  askers_.clear();
  return ranks;
}

}  // namespace paceline
