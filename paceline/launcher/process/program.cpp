#include "paceline/launcher/process/program.h"

#include <cerrno>
#include <sstream>

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include "paceline/engine/core/exit_code.h"

namespace paceline::launcher {
namespace {

enum class Finding { kMissing, kDirectory, kNotExecutable, kGood };

Finding look_at(const std::string& path) {
  struct stat status {};
  if (stat(path.c_str(), &status) != 0) {
    return errno == EACCES ? Finding::kNotExecutable : Finding::kMissing;
  }
  if (S_ISDIR(status.st_mode)) return Finding::kDirectory;
  return access(path.c_str(), X_OK) == 0 ? Finding::kGood : Finding::kNotExecutable;
}

std::string hint_for(const std::string& name) {
  if (name.ends_with(".py")) return fmt::format(" (for a Python script: python3 {})", name);
  return fmt::format(" (make it executable: chmod +x {})", name);
}

std::string check_path(const std::string& name) {
  switch (look_at(name)) {
    case Finding::kMissing:
      throw ProgramError(kExitNotFound, fmt::format("'{}' does not exist", name));
    case Finding::kDirectory:
      throw ProgramError(kExitNotExecutable,
                         fmt::format("'{}' is a directory, not a program", name));
    case Finding::kNotExecutable:
      throw ProgramError(kExitNotExecutable,
                         fmt::format("'{}' may not be executed{}", name, hint_for(name)));
    case Finding::kGood:
      break;
  }
  return name;
}

}  // namespace

std::string find_program(const std::string& name, const std::string& path) {
  if (name.empty()) throw ProgramError(kExitNotFound, "the program's name is empty");
  if (name.find('/') != std::string::npos) return check_path(name);
  std::istringstream folders(path);
  for (std::string folder; std::getline(folders, folder, ':');) {
    std::string candidate = (folder.empty() ? "." : folder) + "/" + name;
    if (look_at(candidate) == Finding::kGood) return candidate;
  }
  const bool here = look_at("./" + name) != Finding::kMissing;
  throw ProgramError(kExitNotFound,
                     fmt::format("'{}' was not found in PATH{}", name,
                                 here ? fmt::format("; did you mean ./{}?", name) : ""));
}

}  // namespace paceline::launcher
