#pragma once

// The findings of `paceline doctor`, one on each line, as text or JSON. Each check examines one
// thing, changes nothing and takes milliseconds.

#include <string>
#include <vector>

namespace paceline::apps {

// kInfo: an optional part that this build lacks, which is not a defect.
enum class CheckResult { kOk, kInfo, kWarn, kFail };

struct Finding {
  std::string name;  // "cpu", "/dev/shm", ...
  CheckResult result = CheckResult::kOk;
  std::string text;    // what was found
  std::string advice;  // how to correct it; empty if nothing is missing
};

std::string doctor_text(const std::vector<Finding>& findings);
std::string doctor_json(const std::vector<Finding>& findings);
bool any_failed(const std::vector<Finding>& findings);

// Checks what the machine and the limits of this process allow. Defined in check_machine.cpp.
std::vector<Finding> check_machine();
// Checks what the engine uses on this machine. Defined in check_build.cpp.
std::vector<Finding> check_engine();
// Checks what this build contains, the installed libraries and the variables. Defined in
// check_build.cpp.
std::vector<Finding> check_build();

}  // namespace paceline::apps
