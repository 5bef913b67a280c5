#pragma once

// A made-up environment for tests.

#include <map>
#include <optional>
#include <string>
#include <utility>

#include "paceline/engine/rendezvous/launch_environment.h"

namespace paceline {

using Variables = std::map<std::string, std::string>;

inline GetVariable variables_of(Variables variables) {
  return [variables = std::move(variables)](const std::string& name) -> std::optional<std::string> {
    const auto entry = variables.find(name);
    if (entry == variables.end()) return std::nullopt;
    return entry->second;
  };
}

}  // namespace paceline
