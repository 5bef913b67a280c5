#pragma once

// The options of a command. Each is declared once: its names and help, how its text is read into
// the value that it sets, how that value is printed, and where it applies. The help, the checks,
// --print-config and the arguments for other hosts are made from this table.

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>

#include "apps/cli/command_line.h"
#include "apps/cli/option_value.h"

namespace paceline::apps {

struct Option;

// The variable that an option sets. The variable must outlive the table; its value when the option
// is declared is the default.
struct OptionTarget {
  std::function<void(const Option&)> read = {};  // throws UsageError; empty: only `text` is used
  std::function<std::string()> print = {};       // returns "" if no value is in effect
  std::string unset = "none";                    // what --print-config prints for ""
  std::string range = {};                        // "1 to 8", for the help
};

enum OptionTraits : unsigned {
  kDecidedHere = 1,   // decided by this launcher; not passed on to other hosts
  kOfHosts = 2,       // concerns how the hosts of --hosts are reached
  kNotSubmitted = 4,  // has no effect in a job that a scheduler starts
  kNoVariable = 8,    // cannot be set by a variable
};

struct Option {
  std::string name;  // "--log-dir"
  CLI::Option* declared = nullptr;
  OptionTarget target;
  unsigned traits = 0;  // a set of bits: OptionTraits of paceline run, BenchMode of paceline bench
  bool is_flag = false;

  // The members below are set by OptionTable::take().
  std::string text;    // as given; "true" for a flag that is on; empty: not given
  std::string origin;  // "flag --log-dir", "variable PET_LOG_DIR", "file F, line 3", "default"
  // The origin as it is written in messages: "--log-dir", "PET_LOG_DIR", "file F, line 3: log-dir".
  std::string source;

  bool given() const { return !text.empty(); }
  // The value in effect as text; "" if there is none.
  std::string value() const;
  // The text as a number; UsageError if it is not a number from `min` to `max`.
  long number(long min, long max) const { return whole_number(source, text, min, max); }
  // Throws UsageError, which names the source, the text and what is allowed.
  [[noreturn]] void refuse(const std::string& allowed) const {
    refuse_value(source, text, allowed);
  }
};

// The target of a flag, which is off by default.
OptionTarget bool_target(bool& value);
OptionTarget text_target(std::string& value, const char* unset = "none");
OptionTarget seconds_target(std::chrono::nanoseconds& value, double max, double min = 0);
// "1 to 8"; "at least 1" if `max` is the largest value of the type.
std::string range_text(long min, long max);

// The target of a number. A value below the range is printed as unset.
template <class Number>
OptionTarget number_target(Number& value, long min, long max, const char* unset = "none") {
  const auto read = [&value, min, max](const Option& option) {
    value = static_cast<Number>(option.number(min, max));
  };
  const auto print = [&value, min] {
    return static_cast<long>(value) < min ? "" : std::to_string(value);
  };
  return {.read = read, .print = print, .unset = unset, .range = range_text(min, max)};
}

// "a, b or c"; for more than four words "one of a, b, ..." with a suggestion for the word that was
// typed.
std::string allowed_words(const std::vector<std::string>& words, const std::string& typed);

// The target of an option that takes one of several words, each of which stands for a value.
template <class Value>
OptionTarget word_target(Value& value, std::vector<std::pair<std::string, Value>> words) {
  const auto read = [&value, words](const Option& option) {
    std::vector<std::string> known;
    for (const auto& [word, meaning] : words) {
      if (option.text == word) {
        value = meaning;
        return;
      }
      known.push_back(word);
    }
    option.refuse(allowed_words(known, option.text));
  };
  const auto print = [&value, words] {
    for (const auto& [word, meaning] : words) {
      if (meaning == value) return word;
    }
    return std::string();
  };
  return {.read = read, .print = print};
}

// Sets the format of the help: `usage` first, names in a column of 34 characters, --help in the
// group "Help".
void set_usage(CLI::App& app, const std::string& usage);

// Thread safety: none.
class OptionTable {
 public:
  // `has_variables`: whether options can be set by variables, such as --log-dir by PET_LOG_DIR.
  OptionTable(CLI::App& app, bool has_variables) : app_(app), has_variables_(has_variables) {}
  OptionTable(const OptionTable&) = delete;
  OptionTable& operator=(const OptionTable&) = delete;

  // Sets the group in the help for the options that are declared after this call.
  void group(const char* name) { group_ = name; }
  Option& value(const std::string& names, const char* type, const char* help, OptionTarget target,
                unsigned traits = 0);
  Option& flag(const std::string& name, const char* help, OptionTarget target = {},
               unsigned traits = 0);

  // Shows in the help a word (positional argument) of the command. read_line() returns such words.
  void word(const char* name, const char* help);

  // Takes the texts from `line`, from variables and from defaults. If --help was typed, prints the
  // help and returns false. Throws UsageError.
  bool take(const CommandLine& line);
  // Reads the texts into the targets, in the order of declaration. Throws UsageError.
  void read() const;

  // Calls take() and read(), for a command that takes at most `most_words` words, and returns these
  // words; options may be between them. If --help was typed, prints the help and returns nullopt.
  // Throws UsageError.
  std::optional<std::vector<std::string>> read_line(const std::vector<std::string>& arguments,
                                                    std::size_t most_words);

  // Requires: the option has been declared.
  const Option& operator[](const std::string& name) const { return options_.at(index_of(name)); }
  // Replaces the target, for a command that reads the option differently. The default in the help
  // does not change.
  void retarget(const std::string& name, OptionTarget target) {
    options_.at(index_of(name)).target = std::move(target);
  }
  const std::deque<Option>& options() const { return options_; }

  // The options that were given and that are passed to other hosts unchanged, as arguments.
  std::vector<std::string> passed_on() const;

 private:
  std::size_t index_of(const std::string& name) const;

  Option& add(const std::string& names, OptionTarget target, unsigned traits);
  void show(Option& option) const;

  CLI::App& app_;
  const bool has_variables_;
  const char* group_ = "Options";
  std::deque<Option> options_;  // a deque, because `app_` keeps pointers to the texts
};

}  // namespace paceline::apps
