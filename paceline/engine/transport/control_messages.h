#pragma once

// What a rank says on its control sockets when it ends its part in a group: why it failed, or
// goodbye. docs/wire_formats.md has the layout.

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

inline constexpr std::size_t kMaxNoticeBytes = 1027;

// Text beyond 1024 bytes is cut.
std::string encode_notice(const Error& cause);
std::string encode_goodbye();

struct Notice {
  bool goodbye = false;
  ErrorCode code{};
  std::string text;
};
// False for the beginning of a notice, of which more must come.
bool is_whole_notice(std::span<const char> bytes);
// Empty for bytes that are not a notice.
std::optional<Notice> decode_notice(std::span<const char> bytes);

// What ranks say on their control channels before the notice with which they leave.
// docs/wire_formats.md has the layout.
//
// They ask each other, before one of them blames another for a time-out: which ranks do you wait
// for? A rank that waits answers; one that is stopped, or computes, does not. And a rank says why
// another of its groups has failed (failure_domain.h), in case it leaves because of that.
//
// Thread safety: none; the mesh guards it.

// A rank that another waits for, and whether it is known to have arrived at the operation.
struct Awaited {
  int rank = 0;
  bool has_come = false;
};

class Inquiry {
 public:
  static std::string encode_question();
  // No more than the first 64.
  static std::string encode_answer(std::span<const Awaited> awaited);

  // Text beyond 1024 bytes is cut.
  static std::string encode_reason(const std::string& text);

  explicit Inquiry(int world_size) : world_size_(world_size) {}

  // Takes the questions, answers and reasons at the front of what has arrived from `peer`. Returns
  // what is behind them: a notice, or nothing. What has arrived in part waits for its end.
  std::string take(int peer, std::string_view bytes);

  void forget_answers() { answers_.clear(); }
  // The ranks that `peer` said it waits for, since then; empty: it said nothing.
  std::optional<std::vector<Awaited>> answer_of(int peer) const;
  // What `peer` said first of a failure of another group; empty: nothing.
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
