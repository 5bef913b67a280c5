#pragma once

// Parses and formats text for people and other programs: numbers and lists of numbers, the value
// of an option (settings such as "hosts=64,link=25Gbit,latency=20us"), and the words of a command
// as a POSIX shell reads them.
//
// Thread safety: pure functions.

#include <charconv>
#include <cstddef>
#include <functional>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <type_traits>
#include <vector>

namespace paceline {

// The whole of `text` as a number; nullopt for any other text and for numbers that T cannot hold.
template <class T>
std::optional<T> parse_number(std::string_view text) {
  T value{};
  const char* const end = text.data() + text.size();
  const auto [stop, status] = std::from_chars(text.data(), end, value);
  return status == std::errc() && stop == end ? std::optional(value) : std::nullopt;
}
// As above, but also returns nullopt for NaN and for numbers below `least` or above `most`.
template <class T>
std::optional<T> parse_number(std::string_view text, std::type_identity_t<T> least,
                              std::type_identity_t<T> most) {
  const auto value = parse_number<T>(text);
  return value && *value >= least && *value <= most ? value : std::nullopt;
}

// The parts between the separators, including empty ones: one part more than there are separators.
std::vector<std::string_view> split(std::string_view text, char separator);

// Ascending numbers as "0-3, 7": a dash stands for `least_joined` or more consecutive numbers.
std::string format_ranges(std::span<const int> numbers, std::string_view separator,
                          std::size_t least_joined);
// Ranks as messages list them: "0-3, 7", and "0, 1" for two neighbours. `ranks` may have any order.
std::string format_ranks(std::vector<int> ranks);
// As above, with the noun: "rank 3", "ranks 0-3, 7".
std::string ranks_text(const std::vector<int>& ranks);

// The error for a setting that cannot be used; the message says what is wrong.
class SettingError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

struct Setting {
  std::string_view key, value;

  // Throws SettingError, for example "link=25: not a rate such as 25Gbit".
  [[noreturn]] void refuse(std::string_view allowed) const;
  // The value as a whole number from `least` to `most`; calls refuse() for any other text.
  int whole_number(int least, int most) const;
};

struct Unit {
  std::string_view name;
  double factor;
};
// Parses a positive number with one of the units; returns the number times the unit's factor.
double quantity(const Setting& setting, std::span<const Unit> units, std::string_view allowed);
// A rate such as "25Gbit" (kbit, Mbit, Gbit, Tbit), in bytes per second.
double rate(const Setting& setting);
// A time such as "20us" (us, ms, s, min, h, d), in seconds.
double duration(const Setting& setting);

// Calls `take` with each setting, in order. Throws SettingError for a key that is given twice.
void for_each_setting(std::string_view text, const std::function<void(const Setting&)>& take);

// Text that a POSIX shell reads back as exactly the one word `word`, whatever its characters.
std::string shell_quoted(std::string_view word);

// "ssh -o 'A B'" is {ssh, -o, A B}. Quotes and backslashes work as in a shell. Nothing is expanded:
// unquoted $ ` ; | & < > ( ), $ and ` in double quotes, a quote that is not closed and a backslash
// at the end give Error(kInvalid). `what` names the option in the message.
std::vector<std::string> split_shell_words(const std::string& text, const std::string& what);

// One line that a POSIX shell reads back as exactly these words.
std::string shell_line(std::span<const std::string> words);

// Suggestions for mistyped words: "Did you mean ...?".

// The smallest number of single-character insertions, deletions, replacements and swaps of
// neighbours that turn one word into the other.
int edit_distance(const std::string& a, const std::string& b);

// The word of `known` that is nearest to `typed`, or "" when no word is similar enough.
std::string nearest(const std::string& typed, const std::vector<std::string>& known);

}  // namespace paceline
