#pragma once

// Numbers as words of Metadata. They are written so that reading them back gives the same bits.
//
// Thread safety: pure functions.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "paceline/training/optim/metadata.h"

namespace paceline::optim {

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
