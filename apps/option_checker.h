#pragma once

// Turns the text of an option into a value, or into an error that names flag or variable, value and
// what is allowed.

#include <chrono>
#include <cstdlib>
#include <string>

#include "apps/command_line.h"
#include "apps/option_value.h"
#include "apps/run_options.h"

namespace paceline::apps {

class Checker {
 public:
  explicit Checker(const CommandLine& line) : line_(line) {}

  // Where the value of `flag` comes from, for messages.
  std::string source(const std::string& flag) const {
    if (line_.has(flag)) return flag;
    std::string variable = variable_of(flag);
    const char* value = std::getenv(variable.c_str());
    if (value != nullptr && *value != '\0') return variable;
    for (const CommandLine::Default& one : line_.defaults) {
      if (one.name == flag) return one.source + ": " + flag.substr(2);
    }
    return flag;
  }

  [[noreturn]] void refuse(const std::string& flag, const std::string& text,
                           const std::string& allowed) const {
    refuse_value(source(flag), text, allowed);
  }

  // `key`: of the item in a list of KEY=VALUE that `text` belongs to.
  long integer(const std::string& flag, const std::string& text, long min, long max,
               const std::string& also = "", const std::string& key = "") const {
    return whole_number(source(flag), text, min, max, also, key);
  }

  long integer_or(const std::string& flag, const std::string& text, long fallback, long min,
                  long max) const {
    return text.empty() ? fallback : integer(flag, text, min, max);
  }

  // 0 to `max` seconds.
  std::chrono::nanoseconds seconds(const std::string& flag, const std::string& text, double max,
                                   const std::string& key = "") const {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(
        std::chrono::duration<double>(seconds_number(source(flag), text, 0, max, key)));
  }

 private:
  const CommandLine& line_;
};

}  // namespace paceline::apps
