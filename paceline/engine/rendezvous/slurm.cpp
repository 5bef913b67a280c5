#include "paceline/engine/rendezvous/slurm.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstdint>
#include <string_view>

#include <fmt/format.h>

#include "paceline/engine/core/option_text.h"

namespace paceline {

namespace {

constexpr std::size_t kMaxNodes = 65536;

std::optional<unsigned> number(std::string_view text) {
  return parse_number<unsigned>(text, 0, 999'999'999);
}

// Splits the text at the commas outside of brackets.
std::vector<std::string> parts_of(const std::string& text) {
  std::vector<std::string> parts(1);
  bool inside = false;
  for (const char c : text) {
    if (c == '[') inside = true;
    if (c == ']') inside = false;
    if (c == ',' && !inside) {
      parts.emplace_back();
    } else {
      parts.back() += c;
    }
  }
  return parts;
}

// Adds the nodes of a range such as "1-3" or "07" after a prefix; leading zeros set the width.
bool add_range(const std::string& prefix, const std::string& range,
               std::vector<std::string>& nodes) {
  const auto dash = range.find('-');
  const std::string first = range.substr(0, dash);
  const auto begin = number(first);
  const auto end = dash == std::string::npos ? begin : number(range.substr(dash + 1));
  if (!begin || !end || *end < *begin || *end - *begin >= kMaxNodes) return false;
  for (unsigned i = *begin; i <= *end; ++i) {
    nodes.push_back(fmt::format("{}{:0{}}", prefix, i, first.size()));
  }
  return nodes.size() <= kMaxNodes;
}

bool is_name(const std::string& text) {
  return !text.empty() && text.front() != '-' &&
         std::all_of(text.begin(), text.end(), [](unsigned char c) {
           return (c < 0x80 && std::isalnum(c) != 0) || c == '-' || c == '_' || c == '.';
         });
}

bool add_part(const std::string& part, std::vector<std::string>& nodes) {
  const auto bracket = part.find('[');
  if (bracket == std::string::npos) {
    nodes.push_back(part);
    return is_name(part) && nodes.size() <= kMaxNodes;
  }
  if (part.back() != ']' || !is_name(part.substr(0, bracket))) return false;
  const std::string ranges = part.substr(bracket + 1, part.size() - bracket - 2);
  for (const std::string& range : parts_of(ranges)) {
    if (!add_range(part.substr(0, bracket), range, nodes)) return false;
  }
  return true;
}

}  // namespace

std::optional<std::vector<std::string>> expand_node_list(const std::string& text) {
  std::vector<std::string> nodes;
  for (const std::string& part : parts_of(text)) {
    if (!add_part(part, nodes)) return std::nullopt;
  }
  return nodes;
}

std::optional<std::vector<int>> expand_task_counts(const std::string& text) {
  std::vector<int> counts;
  for (const std::string& part : parts_of(text)) {
    const auto parenthesis = part.find("(x");
    const auto count = number(part.substr(0, parenthesis));
    std::optional<unsigned> times = 1;
    if (parenthesis != std::string::npos) {
      if (part.back() != ')') return std::nullopt;
      times = number(part.substr(parenthesis + 2, part.size() - parenthesis - 3));
    }
    if (!count || *count == 0 || !times || counts.size() + *times > kMaxNodes) return std::nullopt;
    counts.insert(counts.end(), *times, static_cast<int>(*count));
  }
  return counts;
}

bool in_step_of_srun(const GetVariable& variable) {
  constexpr std::uint64_t kFirstOfSlurmsOwn = 0xfffffff0;  // slurm.h: SLURM_INTERACTIVE_STEP, ...
  const auto text = variable("SLURM_STEP_ID");
  if (!text) return false;
  std::uint64_t number = 0;
  const auto [stop, status] = std::from_chars(text->data(), text->data() + text->size(), number);
  return status != std::errc() || number < kFirstOfSlurmsOwn;
}

}  // namespace paceline
