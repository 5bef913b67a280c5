#pragma once

// What `paceline run` is about to do, decided. A value.

#include <string>

#include "paceline/job/launch_options.h"
#include "paceline/placement/placement.h"

namespace paceline::launch {

struct LaunchPlan {
  LaunchOptions options;
  std::string program_path;  // options.command[0], found
  Placement placement;
};

}  // namespace paceline::launch
