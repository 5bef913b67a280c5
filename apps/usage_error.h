#pragma once

// A command line that cannot be carried out. The message names the flag (or variable), the value
// and what is allowed.

#include <stdexcept>

namespace paceline::apps {

class UsageError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace paceline::apps
