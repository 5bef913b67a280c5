#pragma once

// The checks of `paceline doctor`. Each looks at one thing, changes nothing and takes milliseconds.

#include <vector>

#include "apps/doctor_report.h"

namespace paceline::apps {

// In doctor_machine.cpp: what the machine and the limits of this process allow.
std::vector<Finding> check_machine();
// In doctor_engine.cpp: what the engine does with this machine.
std::vector<Finding> check_engine();
// In doctor_build.cpp: what this build has, and what stands around it.
std::vector<Finding> check_build();

}  // namespace paceline::apps
