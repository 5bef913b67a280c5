#include "paceline/engine/core/number_text.h"

#include <algorithm>

namespace paceline {

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (;;) {
    const auto end = text.find(separator);
    parts.push_back(text.substr(0, end));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

std::string format_ranges(std::span<const int> numbers, std::string_view separator,
                          std::size_t least_joined) {
  std::string text;
  for (std::size_t begin = 0; begin < numbers.size();) {
    std::size_t end = begin + 1;
    while (end < numbers.size() && numbers[end] == numbers[end - 1] + 1) ++end;
    const bool is_joined = end - begin >= std::max<std::size_t>(2, least_joined);
    if (!is_joined) end = begin + 1;
    text.append(text.empty() ? "" : separator).append(std::to_string(numbers[begin]));
    if (is_joined) text.append("-").append(std::to_string(numbers[end - 1]));
    begin = end;
  }
  return text;
}

std::string format_ranks(std::vector<int> ranks) {
  std::ranges::sort(ranks);
  return format_ranges(ranks, ", ", 3);
}

std::string ranks_text(const std::vector<int>& ranks) {
  return (ranks.size() == 1 ? "rank " : "ranks ") + format_ranks(ranks);
}

}  // namespace paceline
