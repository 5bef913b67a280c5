#include "paceline/launcher/messages/job_terms.h"

#include <algorithm>
#include <string_view>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "paceline/engine/core/check.h"
#include "paceline/engine/core/option_text.h"

namespace paceline::launcher {

namespace {

constexpr int kMaxRanks = 1'000'000;  // of one role, and of all roles together
constexpr std::size_t kLongestName = 64;
constexpr const char* kForm = "write NAME=COUNT, as in trainer=2,observer=4";

bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
bool is_digit(char c) { return c >= '0' && c <= '9'; }

std::vector<std::string> parts_of(const std::string& text) {
  std::vector<std::string> parts(1);
  for (const char c : text) {
    if (c == ',') {
      parts.emplace_back();
    } else {
      parts.back() += c;
    }
  }
  return parts;
}

// A name must not end with a digit: it could be mistaken for part of a worker's number.
void check_name(const std::string& name, const std::string& source) {
  const bool is_word = std::all_of(name.begin(), name.end(), [](char c) {
    return is_letter(c) || is_digit(c) || c == '-' || c == '_';
  });
  check(is_word && !name.empty() && is_letter(name.front()),
        "{}: '{}' is not a valid role name: use letters, digits, - and _, and begin with a letter",
        source, name);
  check(!is_digit(name.back()),
        "{}: '{}': a role's name must not end with a digit, because its workers are numbered: {}0 "
        "could be a worker of another role",
        source, name, name);
  check(name.size() <= kLongestName, "{}: '{}': a role's name has at most {} characters", source,
        name, kLongestName);
  check(name != kNoRole, "{}: '{}' is reserved for ranks without a role; choose another name",
        source, name);
}

int count_of(const std::string& part, std::string_view digits, const std::string& source) {
  const auto count = parse_number<int>(digits, 1, kMaxRanks);
  check(count.has_value(), "{}: '{}': a role has from 1 to {} ranks, as in trainer=2", source, part,
        kMaxRanks);
  return *count;
}

std::vector<std::string> names_of(const Roles& roles) {
  std::vector<std::string> names;
  for (const RoleCount& role : roles) names.push_back(role.name);
  return names;
}

}  // namespace

int num_ranks(const Roles& roles) {
  int sum = 0;
  for (const RoleCount& role : roles) sum += role.count;
  return sum;
}

RankRole role_of(const Roles& roles, int rank) {
  RankRole found;
  int first = 0;
  for (const RoleCount& role : roles) {
    if (rank >= first && rank < first + role.count) {
      found = {.name = role.name, .number = rank - first, .count = 0, .serves = role.serves};
    }
    first += role.count;
  }
  first = 0;
  for (const RoleCount& role : roles) {
    if (role.name == found.name) {
      if (first + role.count <= rank) found.number += role.count;
      found.count += role.count;
    }
    first += role.count;
  }
  return found;
}

std::string to_text(const Roles& roles) {
  std::string text;
  for (const RoleCount& role : roles) {
    text += fmt::format("{}{}={}", text.empty() ? "" : ",", role.name, role.count);
  }
  return text;
}

Roles parse_roles(const std::string& text, const std::string& source) {
  Roles roles;
  for (const std::string& part : parts_of(text)) {
    const auto equals = part.find('=');
    check(equals != std::string::npos && equals > 0 && equals + 1 < part.size(), "{}: '{}': {}",
          source, part, kForm);
    const std::string name = part.substr(0, equals);
    check_name(name, source);
    const bool is_new = std::none_of(roles.begin(), roles.end(),
                                     [&](const RoleCount& role) { return role.name == name; });
    check(is_new, "{}: role '{}' is given twice", source, name);
    roles.push_back({name, count_of(part, std::string_view(part).substr(equals + 1), source)});
    check(num_ranks(roles) <= kMaxRanks, "{}: the roles have more than {} ranks", source,
          kMaxRanks);
  }
  return roles;
}

std::vector<std::string> parse_role_names(const std::string& text, const std::string& source) {
  std::vector<std::string> names = parts_of(text);
  std::vector<std::string> sorted = names;
  std::sort(sorted.begin(), sorted.end());
  const auto twice = std::adjacent_find(sorted.begin(), sorted.end());
  check(twice == sorted.end(), "{}: role '{}' is given twice", source,
        twice == sorted.end() ? "" : *twice);
  return names;
}

void set_awaited(Roles& roles, const std::string& names, const std::string& source) {
  for (RoleCount& role : roles) role.serves = true;
  for (const std::string& name : parse_role_names(names, source)) {
    const auto role = std::find_if(roles.begin(), roles.end(),
                                   [&](const RoleCount& one) { return one.name == name; });
    check(role != roles.end(), "{}: '{}' is not a role of --roles: choose from {}", source, name,
          fmt::join(names_of(roles), ", "));
    role->serves = false;
  }
}

bool some_serve(const Roles& roles) {
  return std::any_of(roles.begin(), roles.end(), [](const RoleCount& role) { return role.serves; });
}

bool all_serve(const Roles& roles) {
  return std::all_of(roles.begin(), roles.end(), [](const RoleCount& role) { return role.serves; });
}

}  // namespace paceline::launcher
