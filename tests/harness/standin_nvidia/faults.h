#pragma once

// Reads the environment variables that choose the faults of a stand-in, at every use, so that tests
// can change them.

#include <cstdlib>
#include <string>

namespace paceline::standin {

inline std::string variable(const char* name) {
  const char* const text = std::getenv(name);
  return text == nullptr ? "" : text;
}

inline int number(const char* name, int otherwise) {
  const std::string text = variable(name);
  return text.empty() ? otherwise : std::atoi(text.c_str());
}

// Whether the variable contains the number of this rank, or "any".
inline bool applies_to(const char* name, int rank) {
  const std::string text = variable(name);
  return text == "any" || text == std::to_string(rank);
}

}  // namespace paceline::standin
