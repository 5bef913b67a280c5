#include "apps/bench/own_variables.h"

#include <span>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace paceline::bench {
namespace {

std::vector<std::string> present(std::span<const std::string_view> names,
                                 const launcher::Environment& environment) {
  std::vector<std::string> found;
  for (const std::string_view name : names) {
    const auto variable = environment.find(std::string(name));
    if (variable == environment.end() || variable->second.empty()) continue;
    found.push_back(fmt::format("{}={}", name, variable->second));
  }
  return found;
}

}  // namespace

OwnVariables own_variables(const launcher::Environment& inherited,
                           const launcher::Environment& set) {
  launcher::Environment environment = inherited;
  for (const auto& [name, value] : set) environment.erase(name);
  return {present(kHeldVariables, environment), present(kRemovedVariables, environment)};
}

std::string describe(const OwnVariables& variables) {
  std::string text;
  if (!variables.held.empty()) text = fmt::format("with {}", fmt::join(variables.held, ", "));
  if (!variables.removed.empty()) {
    text += fmt::format("{}without {}: these rows are the engine's alone", text.empty() ? "" : "; ",
                        fmt::join(variables.removed, ", "));
  }
  return text;
}

}  // namespace paceline::bench
