#pragma once

// Finds the program to start before anything is started, as a shell would: a name without '/' along
// PATH.

#include <stdexcept>
#include <string>

namespace paceline::launcher {

// The program cannot be started. exit_code() is the shell's: 127 not found, 126 found but not
// executable.
class ProgramError : public std::runtime_error {
 public:
  ProgramError(int exit_code, const std::string& message)
      : std::runtime_error(message), exit_code_(exit_code) {}
  int exit_code() const { return exit_code_; }

 private:
  int exit_code_;
};

// The path to execute for `name` as typed; `path` is the value of PATH. Throws ProgramError.
std::string find_program(const std::string& name, const std::string& path);

}  // namespace paceline::launcher
