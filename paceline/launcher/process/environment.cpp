#include "paceline/launcher/process/environment.h"

#include <cstring>

#include <unistd.h>

namespace paceline::launcher {

Environment inherited_environment() {
  Environment env;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const char* equals = std::strchr(*entry, '=');
    if (equals != nullptr) env.emplace(std::string(*entry, equals - *entry), equals + 1);
  }
  return env;
}

Environment added_variables(const Environment& worker, const Environment& inherited) {
  Environment added;
  for (const auto& [name, value] : worker) {
    const auto before = inherited.find(name);
    if (before == inherited.end() || before->second != value) added.emplace(name, value);
  }
  return added;
}

}  // namespace paceline::launcher
