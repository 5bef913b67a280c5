#include "apps/run/python_program.h"

#include <filesystem>
#include <system_error>

#include <unistd.h>

#include "paceline/engine/core/error_text.h"
#include "paceline/engine/rendezvous/launch_environment.h"

#include "apps/cli/command_line.h"
#include "apps/cli/option_value.h"

namespace paceline::apps {

namespace {

bool is_script(const std::string& name) {
  std::error_code ignored;
  if (!name.ends_with(".py") || !std::filesystem::is_regular_file(name, ignored)) return false;
  const bool is_path = name.find('/') != std::string::npos;
  return !is_path || ::access(name.c_str(), X_OK) != 0;
}

}  // namespace

std::vector<std::string> with_interpreter(std::vector<std::string> program) {
  if (program.empty()) return program;
  const bool is_module = names_module(program.front());
  if (is_module && program.size() == 1) {
    throw UsageError(program.front() + " needs the name of a module");
  }
  if (!is_module && !is_script(program.front())) return program;
  if (is_module) program.front() = "-m";
  program.insert(program.begin(), process_environment()("PACELINE_PYTHON").value_or("python3"));
  return program;
}

}  // namespace paceline::apps
