#pragma once

// The small state of a schedule or a scaler: words by name, as a checkpoint stores them. Numbers
// are written so that reading them back gives the same bits.

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace paceline::optim {

using Metadata = std::map<std::string, std::string>;

std::string to_word(double value);
std::string to_word(std::int64_t value);
std::string to_word(const std::vector<double>& values);
std::string to_word(const std::vector<std::int64_t>& values);

// Read numbers from words. Error(kInvalid), which names `owner`, when the word is missing or is not
// a number.
double number_in(const Metadata& words, const std::string& name, std::string_view owner);
std::int64_t count_in(const Metadata& words, const std::string& name, std::string_view owner);
std::vector<double> numbers_in(const Metadata& words, const std::string& name,
                               std::string_view owner);

// Throws Error(kInvalid), which lists the differences, unless each word of `here` has the same
// value in `saved`. `saved` may have more words.
void require_same_words(const Metadata& saved, const Metadata& here, std::string_view owner);

}  // namespace paceline::optim
