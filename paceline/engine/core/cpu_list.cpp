#include "paceline/engine/core/cpu_list.h"

#include <algorithm>
#include <charconv>
#include <string_view>

#include <fmt/format.h>

namespace paceline {
namespace {

constexpr int kHighestCpu = 65535;

std::optional<int> parse_cpu(std::string_view text) {
  int cpu = -1;
  const auto [stop, status] = std::from_chars(text.data(), text.data() + text.size(), cpu);
  const bool good = status == std::errc() && stop == text.data() + text.size();
  return good && cpu >= 0 && cpu <= kHighestCpu ? std::optional(cpu) : std::nullopt;
}

bool append_range(std::string_view text, std::vector<int>& cpus) {
  const auto dash = text.find('-');
  const auto first = parse_cpu(text.substr(0, dash));
  const auto last = dash == text.npos ? first : parse_cpu(text.substr(dash + 1));
  if (!first || !last || *first > *last) return false;
  for (int cpu = *first; cpu <= *last; ++cpu) cpus.push_back(cpu);
  return true;
}

}  // namespace

std::string format_cpu_list(const std::vector<int>& cpus) {
  std::string text;
  for (std::size_t i = 0; i < cpus.size();) {
    std::size_t end = i;
    while (end + 1 < cpus.size() && cpus[end + 1] == cpus[end] + 1) ++end;
    if (!text.empty()) text += ',';
    text += end == i ? fmt::to_string(cpus[i]) : fmt::format("{}-{}", cpus[i], cpus[end]);
    i = end + 1;
  }
  return text;
}

std::optional<std::vector<int>> parse_cpu_list(const std::string& text) {
  std::vector<int> cpus;
  for (std::string_view rest = text;;) {
    const auto comma = rest.find(',');
    if (!append_range(rest.substr(0, comma), cpus)) return {};
    if (comma == rest.npos) break;
    rest.remove_prefix(comma + 1);
  }
  std::sort(cpus.begin(), cpus.end());
  cpus.erase(std::unique(cpus.begin(), cpus.end()), cpus.end());
  return cpus;
}

}  // namespace paceline
