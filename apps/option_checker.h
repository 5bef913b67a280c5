#pragma once

// Turns the text of an option into a value, or into an error that names flag or variable, value and
// what is allowed.

#include <charconv>
#include <chrono>
#include <cstdlib>
#include <string>

#include <fmt/format.h>

#include "paceline/launch/line_formatter.h"

#include "apps/command_line.h"
#include "apps/run_options.h"
#include "apps/usage_error.h"

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
    throw UsageError(
        fmt::format("{}: '{}' is not {}", source(flag), launch::neutralise_in_line(text), allowed));
  }

  // `key`: of the item in a list of KEY=VALUE that `text` belongs to.
  long integer(const std::string& flag, const std::string& text, long min, long max,
               const std::string& also = "", const std::string& key = "") const {
    long value = 0;
    const auto [stop, status] = std::from_chars(text.data(), text.data() + text.size(), value);
    const bool good = status == std::errc() && stop == text.data() + text.size();
    if (!good || value < min || value > max) {
      refuse(flag, key + text, fmt::format("a whole number from {} to {}{}", min, max, also));
    }
    return value;
  }

  long integer_or(const std::string& flag, const std::string& text, long fallback, long min,
                  long max) const {
    return text.empty() ? fallback : integer(flag, text, min, max);
  }

  // 0 to `max` seconds.
  std::chrono::nanoseconds seconds(const std::string& flag, const std::string& text, double max,
                                   const std::string& key = "") const {
    double value = 0;
    const auto [stop, status] = std::from_chars(text.data(), text.data() + text.size(), value);
    const bool good = status == std::errc() && stop == text.data() + text.size();
    if (!good || !(value >= 0 && value <= max)) {
      refuse(flag, key + text, fmt::format("a number of seconds from 0 to {}", max));
    }
    return std::chrono::duration_cast<std::chrono::nanoseconds>(
        std::chrono::duration<double>(value));
  }

 private:
  const CommandLine& line_;
};

}  // namespace paceline::apps
