#include "apps/own_program.h"

#include <filesystem>

namespace paceline::apps {

std::string own_program() { return std::filesystem::read_symlink("/proc/self/exe").string(); }

std::string contestants_folder() {
  return std::filesystem::canonical("/proc/self/exe").parent_path().parent_path() / "libexec" /
         "paceline";
}

}  // namespace paceline::apps
