#pragma once

// What ranks ask each other on their control channels before one of them blames another for a
// time-out: for whom do you wait? Who waits answers; who is stopped, or elsewhere, does not.
// docs/wire_formats.md has the layout.
//
// Thread safety: none; the mesh guards it.

#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace paceline {

// For whom a rank waits, and whether that one has been heard of in the operation.
struct Awaited {
  int rank = 0;
  bool has_come = false;
};

class Inquiry {
 public:
  static std::string encode_question();
  // No more than the first 64.
  static std::string encode_answer(std::span<const Awaited> awaited);

  explicit Inquiry(int world_size) : world_size_(world_size) {}

  // Takes the questions and answers at the front of what has come from `peer`. Returns what is
  // behind them: a notice, or nothing. The beginning of an answer or a notice waits for its end.
  std::string take(int peer, std::string_view bytes);

  void forget_answers() { answers_.clear(); }
  // For whom `peer` said it waits, since then; empty: it said nothing.
  std::optional<std::vector<Awaited>> answer_of(int peer) const;
  // Who has asked since the last call.
  std::vector<int> take_askers();
  bool is_asked() const { return !askers_.empty(); }

 private:
  const int world_size_;
  std::set<int> askers_;
  std::map<int, std::vector<Awaited>> answers_;
  std::map<int, std::string> unfinished_;
};

}  // namespace paceline
