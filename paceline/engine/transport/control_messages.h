#pragma once

// The messages on control channels; transport/FORMAT.md has their layout. A rank ends its part in
// a group with a notice of failure or a goodbye. Before that, ranks exchange questions (which ranks
// do you wait for?), answers (these ranks) and reasons (I may leave, because ...).
//
// Before a rank reports a peer as the cause of its timeout, it asks all peers which ranks they wait
// for, so that the blame falls on a rank that is not waiting itself. A waiting rank answers; a rank
// that is stopped, or that computes, does not answer.

#include <cstddef>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "paceline/engine/core/error.h"

namespace paceline {

// A notice carries the first 64 ranks that an error blames, and the first 1024 bytes of its text.
inline constexpr std::size_t kMaxNoticeBytes = 4 + 64 * 4 + 1024;

std::string encode_notice(const Error& cause);
std::string encode_goodbye();

struct Notice {
  bool goodbye = false;
  ErrorCode code{};
  std::string text;
  std::vector<int> ranks;  // Error::ranks() of the sender's error
};
// False if the bytes are only the beginning of a notice.
bool is_whole_notice(std::span<const char> bytes);
// Decodes a notice or a goodbye; empty for other bytes.
std::optional<Notice> decode_notice(std::span<const char> bytes);

// A rank that a waiting rank waits for, and whether it is known to have arrived at the operation.
struct Awaited {
  int rank = 0;
  bool has_arrived = false;
};

// The questions, answers and reasons that peers send before their notices. Thread safety: none; the
// mutex of Mesh guards it.
class Inquiry {
 public:
  static std::string encode_question();
  // Encodes the first 64 ranks.
  static std::string encode_answer(std::span<const Awaited> awaited);

  // Cuts the text, so that the whole message has at most kMaxNoticeBytes bytes.
  static std::string encode_reason(const std::string& text);

  explicit Inquiry(int world_size) : world_size_(world_size) {}

  // Takes the questions, answers and reasons at the front of the bytes that have arrived from
  // `peer`. Returns the bytes that follow them: a notice, invalid bytes, or nothing. A message that
  // has arrived in part is kept until the rest arrives.
  std::string take(int peer, std::string_view bytes);

  void forget_answers() { answers_.clear(); }
  // The ranks that `peer` waits for, by its own answer; empty if it has not answered.
  std::optional<std::vector<Awaited>> answer_of(int peer) const;
  // The first reason that `peer` gave for leaving the group; empty if it gave none.
  std::string reason_of(int peer) const;
  // The ranks that have asked since the last take_askers().
  std::vector<int> take_askers();
  bool is_asked() const { return !askers_.empty(); }

 private:
  const int world_size_;
  std::set<int> askers_;
  std::map<int, std::vector<Awaited>> answers_;
  std::map<int, std::string> reasons_;
  std::map<int, std::string> unfinished_;
};

}  // namespace paceline
