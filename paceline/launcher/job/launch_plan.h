#pragma once

// What `paceline run` is about to do, decided. A value.

#include <string>

#include "paceline/launcher/job/launch_options.h"
#include "paceline/launcher/placement/placement.h"

namespace paceline::launcher {

struct LaunchPlan {
  LaunchOptions options;
  std::string program_path;  // options.command[0], found
  Placement placement;
};

}  // namespace paceline::launcher
