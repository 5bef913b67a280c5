#pragma once

// A command line that cannot be carried out. The message names the flag (or variable), the value
// and what is allowed.

#include <stdexcept>

namespace paceline::apps {

inline constexpr int kExitUsage = 2;
inline constexpr int kExitEnvironment = 3;

class UsageError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace paceline::apps
