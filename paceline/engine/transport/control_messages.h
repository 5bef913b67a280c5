#pragma once

// The messages on control channels, which docs/wire_formats.md lays out: with which a rank ends its
// part in a group (a notice of failure, or goodbye), and those that ranks exchange before (which
// ranks do you wait for? these; another group of mine has failed, because ...).
//
// Before a rank reports a peer as the cause of its timeout, it asks all peers which ranks they wait
// for, so that the blame falls on a rank that is not waiting itself. A rank that waits answers; one
// that is stopped, or computes, does not.

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
  std::vector<int> ranks;  // Error::ranks() of the rank that sent it
};
// False while the bytes are only the beginning of a notice.
bool is_whole_notice(std::span<const char> bytes);
// Empty for bytes that are not a notice.
std::optional<Notice> decode_notice(std::span<const char> bytes);

// A rank that another waits for, and whether it is known to have arrived at the operation.
struct Awaited {
  int rank = 0;
  bool has_come = false;
};

// The messages of all peers before their notices. Thread safety: none; the mesh guards it.
class Inquiry {
 public:
  static std::string encode_question();
  // The first 64 of them.
  static std::string encode_answer(std::span<const Awaited> awaited);

  // Text beyond 1024 bytes is cut.
  static std::string encode_reason(const std::string& text);

  explicit Inquiry(int world_size) : world_size_(world_size) {}

  // Takes the questions, answers and reasons at the front of the bytes that have arrived from
  // `peer`. Returns what follows them: a notice, or nothing. A message that has arrived in part is
  // kept until its end comes.
  std::string take(int peer, std::string_view bytes);

  void forget_answers() { answers_.clear(); }
  // The ranks that `peer` said it waits for, since then; empty: it said nothing.
  std::optional<std::vector<Awaited>> answer_of(int peer) const;
  // The first reason that `peer` gave for a failure of another group; empty: none.
  std::string reason_of(int peer) const;
  // Which ranks have asked since the last call.
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
