#pragma once

// The small state of a schedule or a scaler: words by name, as a checkpoint stores them.

#include <map>
#include <string>

namespace paceline::optim {

using Metadata = std::map<std::string, std::string>;

}  // namespace paceline::optim
