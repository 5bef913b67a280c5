#pragma once

// The findings of `paceline doctor`, as JSON or as text with a line for each finding and for its
// advice. Each check examines one thing and changes nothing. Most checks take milliseconds; loading
// CUDA takes longer.

#include <string>
#include <vector>

namespace paceline::apps {

// kInfo: this build or machine lacks an optional part, which is not a defect.
enum class CheckResult { kOk, kInfo, kWarn, kFail };

struct Finding {
  std::string name;  // "cpu", "/dev/shm", ...
  CheckResult result = CheckResult::kOk;
  std::string text;    // what was found
  std::string advice;  // how to correct a problem; empty if there is none
};

std::string doctor_text(const std::vector<Finding>& findings);
std::string doctor_json(const std::vector<Finding>& findings);
bool any_failed(const std::vector<Finding>& findings);

// Checks what the machine and the limits of this process allow. Defined in check_machine.cpp.
std::vector<Finding> check_machine();
// Checks the engine's reduction kernel, encryption and calibration, and the contestants of bench.
std::vector<Finding> check_engine();
// Checks what this build contains, the installed libraries and the variables. This function and
// check_engine() are defined in check_build.cpp.
std::vector<Finding> check_build();

}  // namespace paceline::apps
