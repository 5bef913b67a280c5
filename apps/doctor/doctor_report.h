#pragma once

// The findings of `paceline doctor`, one a line, as text or JSON. Each check looks at one thing,
// changes nothing and takes milliseconds.

#include <string>
#include <vector>

namespace paceline::apps {

// kInfo: an optional part that this build lacks, which is not a defect.
enum class Verdict { kOk, kInfo, kWarn, kFail };

struct Finding {
  std::string name;  // "cpu", "/dev/shm", ...
  Verdict verdict = Verdict::kOk;
  std::string text;    // what is there
  std::string advice;  // how to get what is missing; empty when nothing is
};

std::string doctor_text(const std::vector<Finding>& findings);
std::string doctor_json(const std::vector<Finding>& findings);
bool any_failed(const std::vector<Finding>& findings);

// In check_machine.cpp: what the machine and the limits of this process allow.
std::vector<Finding> check_machine();
// In check_build.cpp: what the engine does with this machine.
std::vector<Finding> check_engine();
// In check_build.cpp: what this build has, and the libraries and variables around it.
std::vector<Finding> check_build();

}  // namespace paceline::apps
