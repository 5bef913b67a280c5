#include "paceline/engine/rendezvous/variables.h"

#include <algorithm>
#include <charconv>
#include <fstream>
#include <iterator>

#include "paceline/engine/core/check.h"

namespace paceline {

std::optional<int> read_number(const GetVariable& variable, const std::string& name, int greatest) {
  const auto text = variable(name);
  if (!text) return std::nullopt;
  int number = 0;
  const char* end = text->data() + text->size();
  const auto [stop, status] = std::from_chars(text->data(), end, number);
  check(status == std::errc() && stop == end && number >= 0 && number <= greatest,
        "{}='{}' is not a whole number from 0 to {}", name, *text, greatest);
  return number;
}

std::string require_text(const GetVariable& variable, const std::string& name,
                         const std::string& why) {
  const auto text = variable(name);
  check(text && !text->empty(), "the variable {} is not set: {}", name, why);
  return *text;
}

std::string own_command() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  std::string command((std::istreambuf_iterator<char>(file)), {});
  while (!command.empty() && command.back() == '\0') command.pop_back();
  std::replace_if(
      command.begin(), command.end(), [](char c) { return c < ' '; }, ' ');
  return command.empty() ? "PROGRAM" : command;
}

}  // namespace paceline
