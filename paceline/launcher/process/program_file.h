#pragma once

// Finds the program that the user named. A file that is not a program, for example a source file or
// a shared library, is refused with a message that says what the file is and what to run instead.

#include <stdexcept>
#include <string>

namespace paceline::launcher {

// Thrown when the program cannot be started. exit_code() is the code that a shell returns: 127
// if the program was not found, 126 if it was found but is not executable.
class ProgramError : public std::runtime_error {
 public:
  ProgramError(int exit_code, const std::string& message)
      : std::runtime_error(message), exit_code_(exit_code) {}
  int exit_code() const { return exit_code_; }

 private:
  int exit_code_;
};

// The value of PATH; "" if it is not set.
std::string own_path();

// The path of the program `name`, as typed by the user. As in a shell, a name without '/' is
// searched for along `path`, the value of PATH. Throws ProgramError.
std::string find_program(const std::string& name, const std::string& path = own_path());

}  // namespace paceline::launcher
