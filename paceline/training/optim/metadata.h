#pragma once

// The small state of a schedule or a scaler as a checkpoint stores it: strings (words) by name.

#include <map>
#include <string>

namespace paceline::optim {

using Metadata = std::map<std::string, std::string>;

}  // namespace paceline::optim
