#pragma once

// Reads numbers and words in options strictly. A wrong text is refused with a message that names
// its source (a flag, a variable, a line of a file), the text, and what is allowed: "--epochs: '0'
// is not a whole number from 1 to 1000".

#include <chrono>
#include <stdexcept>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

namespace paceline::apps {

// Thrown for a command line that cannot be carried out. The message names the flag or variable, the
// value and what is allowed.
class UsageError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Throws UsageError.
[[noreturn]] void refuse_value(const std::string& source, const std::string& text,
                               const std::string& allowed);

// The next two functions throw UsageError. `also` names words that are also allowed; `key` is the
// "KEY=" before the text, in a list of KEY=VALUE.
long whole_number(const std::string& source, const std::string& text, long min, long max,
                  const std::string& also = "", const std::string& key = "");
std::chrono::nanoseconds seconds_number(const std::string& source, const std::string& text,
                                        double max, const std::string& key = "", double min = 0);

// The items of a list separated by commas. After a comma at the end there is an empty item.
std::vector<std::string> items_of(const std::string& text);

// "one of a, b; did you mean b?", for refuse_value().
std::string one_of(const std::vector<std::string>& words, const std::string& typed);

// The checks above as validators, for options that CLI11 converts.
CLI::Validator is_whole_number(long min, long max);
CLI::Validator is_number(double min, double max);
CLI::Validator is_one_of(const std::vector<std::string>& words);

}  // namespace paceline::apps
