#pragma once

// What people type behind an option: settings, "hosts=64,link=25Gbit,latency=20us", and the words
// of a command as a POSIX shell reads them.
//
// Thread safety: pure functions.

#include <functional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace paceline {

// What is wrong with a text, and what is allowed.
class SettingError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

struct Setting {
  std::string_view key, value;

  // Throws SettingError: "link=25: not a rate as 25Gbit".
  [[noreturn]] void refuse(std::string_view allowed) const;
  // A whole number; `refuse`s others.
  int whole_number(int least, int most) const;
};

struct Unit {
  std::string_view name;
  double factor;
};
// A number above 0 and one of the units, times its factor.
double quantity(const Setting& setting, std::span<const Unit> units, std::string_view allowed);
// In bytes a second, of "25Gbit" (kbit, Mbit, Gbit, Tbit).
double rate(const Setting& setting);
// In seconds, of "20us" (us, ms, s, min, h, d).
double duration(const Setting& setting);

// Each setting in order. Throws SettingError for a key that comes twice.
void for_each_setting(std::string_view text, const std::function<void(const Setting&)>& take);

// One word that a POSIX shell reads back as exactly `word`, whatever it holds.
std::string shell_quoted(std::string_view word);

// "ssh -o 'A B'" is {ssh, -o, A B}. Quotes and backslashes mean what they mean in a shell; nothing
// is expanded, so whatever would expand or start something else ($ ` ; | & < > ( ) outside of
// quotes) is Error(kInvalid), as is a quote without its end. `what` names the option in the
// message.
std::vector<std::string> split_shell_words(const std::string& text, const std::string& what);

// The words as one line that a POSIX shell reads back as them.
std::string shell_line(std::span<const std::string> words);

// "Did you mean ...?" for a mistyped word. Pure.

// The smallest number of single-character insertions, deletions, replacements and swaps of
// neighbours between two words.
int edit_distance(const std::string& a, const std::string& b);

// The word of `known` nearest to `typed`, or "" when none is near enough to be meant.
std::string nearest(const std::string& typed, const std::vector<std::string>& known);

}  // namespace paceline
