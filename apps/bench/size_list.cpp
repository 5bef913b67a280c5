#include "apps/bench/size_list.h"

#include <algorithm>
#include <charconv>
#include <set>

#include <fmt/format.h>

namespace paceline::bench {
namespace {

constexpr std::size_t kUsualFactor = 4;
constexpr std::size_t kLargestFactor = 1024;

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (;;) {
    const auto end = text.find(separator);
    parts.push_back(text.substr(0, end));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

// What follows the number, as a factor; 0 when it is not a unit.
std::size_t unit_of(std::string_view suffix) {
  if (suffix.ends_with("iB")) {
    suffix.remove_suffix(2);
    if (suffix.empty()) return 0;
  } else if (suffix.ends_with("B")) {
    suffix.remove_suffix(1);
  }
  if (suffix.empty()) return 1;
  if (suffix == "K" || suffix == "k") return 1 << 10;
  if (suffix == "M") return 1 << 20;
  if (suffix == "G") return 1 << 30;
  return 0;
}

std::size_t number_of(std::string_view text, std::size_t largest, std::string_view what,
                      bool with_unit) {
  std::size_t value = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, status] = std::from_chars(text.data(), end, value);
  const std::string_view suffix(stop, static_cast<std::size_t>(end - stop));
  const std::size_t unit = with_unit ? unit_of(suffix) : suffix.empty();
  if (status != std::errc() || unit == 0 || value == 0 || value > largest / unit) {
    throw SizeError(fmt::format("'{}' is not {}", text, what));
  }
  return value * unit;
}

std::size_t size_of(std::string_view text) {
  return number_of(text, kLargestSize, "a size from 1 to 1G (like 8, 64K, 1M)", true);
}

void add_range(const std::vector<std::string_view>& parts, std::string_view text,
               std::set<std::size_t>& sizes) {
  const std::size_t first = size_of(parts[0]), last = size_of(parts[1]);
  const std::size_t factor =
      parts.size() == 3 ? number_of(parts[2], kLargestFactor, "a factor from 2 to 1024", false)
                        : kUsualFactor;
  if (first > last) throw SizeError(fmt::format("'{}' runs from large to small", text));
  if (factor < 2) throw SizeError(fmt::format("'{}' is not a factor from 2 to 1024", parts[2]));
  for (std::size_t size = first; size <= last; size *= factor) sizes.insert(size);
}

}  // namespace

std::vector<std::size_t> parse_sizes(std::string_view text) {
  std::set<std::size_t> sizes;
  for (const std::string_view item : split(text, ',')) {
    const auto parts = split(item, ':');
    if (parts.size() == 1) {
      sizes.insert(size_of(item));
    } else if (parts.size() <= 3) {
      add_range(parts, item, sizes);
    } else {
      throw SizeError(fmt::format("'{}' is not a size or FIRST:LAST[:FACTOR]", item));
    }
  }
  return {sizes.begin(), sizes.end()};
}

}  // namespace paceline::bench
