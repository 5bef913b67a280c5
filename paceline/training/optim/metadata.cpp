#include <charconv>

#include <fmt/ranges.h>

#include "paceline/engine/core/check.h"
#include "paceline/engine/core/error_text.h"
#include "paceline/training/optim/metadata_words.h"

namespace paceline::optim {

namespace {

const std::string& word_in(const Metadata& words, const std::string& name, std::string_view owner) {
  const auto found = words.find(name);
  check(found != words.end(), "{}: the saved state has no \"{}\"", owner, name);
  return found->second;
}

template <class Number>
Number parse_number(std::string_view text, const std::string& name, std::string_view owner) {
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  check(error == std::errc() && end == text.data() + text.size(),
        "{}: \"{}\" of the saved state is not a number: {}", owner, name, text);
  return value;
}

}  // namespace

std::string to_word(double value) { return fmt::format("{}", value); }
std::string to_word(std::int64_t value) { return fmt::format("{}", value); }
std::string to_word(const std::vector<double>& values) {
  return fmt::format("{}", fmt::join(values, " "));
}
std::string to_word(const std::vector<std::int64_t>& values) {
  return fmt::format("{}", fmt::join(values, " "));
}

double number_in(const Metadata& words, const std::string& name, std::string_view owner) {
  return parse_number<double>(word_in(words, name, owner), name, owner);
}

std::int64_t count_in(const Metadata& words, const std::string& name, std::string_view owner) {
  return parse_number<std::int64_t>(word_in(words, name, owner), name, owner);
}

std::vector<double> numbers_in(const Metadata& words, const std::string& name,
                               std::string_view owner) {
  std::vector<double> values;
  std::string_view rest = word_in(words, name, owner);
  while (!rest.empty()) {
    const auto end = std::min(rest.find(' '), rest.size());
    values.push_back(parse_number<double>(rest.substr(0, end), name, owner));
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  return values;
}

void require_same_words(const Metadata& saved, const Metadata& here, std::string_view owner) {
  std::string differences;
  for (const auto& [name, word] : here) {
    const auto found = saved.find(name);
    if (found == saved.end()) {
      differences += fmt::format("\n  {}: {} here, not in the saved state", name, word);
    } else if (found->second != word) {
      differences +=
          fmt::format("\n  {}: {} here, {} in the saved state", name, word, found->second);
    }
  }
  check(differences.empty(), "{}: the state was saved with other options:{}", owner,
        first_lines(differences));
}

}  // namespace paceline::optim
