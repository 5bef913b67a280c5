#pragma once

// Numbers in texts that people or other programs wrote: single numbers and lists.
//
// Thread safety: pure functions.

#include <charconv>
#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <type_traits>
#include <vector>

namespace paceline {

// The number that makes up the whole of `text`; nullopt when it is anything else, or too large for
// T.
template <class T>
std::optional<T> parse_number(std::string_view text) {
  T value{};
  const char* const end = text.data() + text.size();
  const auto [stop, status] = std::from_chars(text.data(), end, value);
  return status == std::errc() && stop == end ? std::optional(value) : std::nullopt;
}
// As above, but nullopt also for NaN and for numbers outside of `least` to `most`.
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

}  // namespace paceline
