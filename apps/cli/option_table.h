#pragma once

// The options of a command, each declared once: its names and help, how its text is read into the
// value it sets, how that value is printed, and where it applies. The help, the checks,
// --print-config and the arguments of other hosts come from this table.

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

// The variable that an option sets. It must outlive the table; what it holds when the option is
// declared is the default.
struct OptionTarget {
  std::function<void(const Option&)> read = {};  // throws UsageError; none: the text is enough
  std::function<std::string()> print = {};       // "": nothing is in effect
  std::string unset = "none";                    // how --print-config prints nothing
  std::string range = {};                        // "1 to 8", for the help
};

enum OptionTraits : unsigned {
  kDecidedHere = 1,   // for all hosts; not passed on to them
  kOfHosts = 2,       // how to reach the hosts of --hosts
  kNotSubmitted = 4,  // has no meaning in a job that a scheduler starts
  kNoVariable = 8,    // for the command line alone
};

struct Option {
  std::string name;  // "--log-dir"
  CLI::Option* declared = nullptr;
  OptionTarget target;
  unsigned traits = 0;  // a set of bits: OptionTraits of paceline run, BenchMode of paceline bench
  bool is_flag = false;

  // From OptionTable::take() on.
  std::string text;    // as given; of a flag that is on: "true"; empty: not given
  std::string origin;  // "flag --log-dir", "variable PET_LOG_DIR", "file F, line 3", "default"
  // The same for messages: "--log-dir", "PET_LOG_DIR", "file F, line 3: log-dir".
  std::string source;

  bool given() const { return !text.empty(); }
  // The value in effect, or "".
  std::string value() const;
  // The text as a number from `min` to `max`. Throws UsageError.
  long number(long min, long max) const { return whole_number(source, text, min, max); }
  // Throws UsageError: source, text and what is allowed.
  [[noreturn]] void refuse(const std::string& allowed) const {
    refuse_value(source, text, allowed);
  }
};

// A flag; off by default.
OptionTarget bool_target(bool& value);
OptionTarget text_target(std::string& value, const char* unset = "none");
OptionTarget seconds_target(std::chrono::nanoseconds& value, double max, double min = 0);
// "1 to 8", or "at least 1" where `max` is the type's.
std::string range_text(long min, long max);

// A value outside the range prints as unset.
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

// "a, b or c"; of more than four words "one of a, b, ...", with the one that was meant.
std::string allowed_words(const std::vector<std::string>& words, const std::string& typed);

// A word for each value.
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

// The form of the help: `usage` in front, names in a column of 34, --help in the group "Help".
void set_usage(CLI::App& app, const std::string& usage);

// Thread safety: none.
class OptionTable {
 public:
  // `has_variables`: --log-dir can be set by PET_LOG_DIR, and so on.
  OptionTable(CLI::App& app, bool has_variables) : app_(app), has_variables_(has_variables) {}
  OptionTable(const OptionTable&) = delete;
  OptionTable& operator=(const OptionTable&) = delete;

  // The group in the help for options that are declared from here on.
  void group(const char* name) { group_ = name; }
  Option& value(const std::string& names, const char* type, const char* help, OptionTarget target,
                unsigned traits = 0);
  Option& flag(const std::string& name, const char* help, OptionTarget target = {},
               unsigned traits = 0);

  // Shows a word of the command itself in the help. read_line() returns it.
  void word(const char* name, const char* help);

  // Takes the texts from `line`, from variables and from defaults. False when --help was typed, and
  // is printed. Throws UsageError.
  bool take(const CommandLine& line);
  // Reads the texts into the targets, in the order of declaration. Throws UsageError.
  void read() const;

  // Both, for a command of at most `most_words` words, which it returns; options may stand between
  // them. Nothing when --help was typed, and is printed. Throws UsageError.
  std::optional<std::vector<std::string>> read_line(const std::vector<std::string>& arguments,
                                                    std::size_t most_words);

  // Requires: it has been declared.
  const Option& operator[](const std::string& name) const { return options_.at(index_of(name)); }
  // For a command that reads the option differently; the default in the help stays.
  void retarget(const std::string& name, OptionTarget target) {
    options_.at(index_of(name)).target = std::move(target);
  }
  const std::deque<Option>& options() const { return options_; }

  // The given options that other hosts take unchanged, as arguments.
  std::vector<std::string> passed_on() const;

 private:
  std::size_t index_of(const std::string& name) const;

  Option& add(const std::string& names, OptionTarget target, unsigned traits);
  void show(Option& option) const;

  CLI::App& app_;
  const bool has_variables_;
  const char* group_ = "Options";
  std::deque<Option> options_;  // stay where they are: `app_` writes their texts
};

}  // namespace paceline::apps
