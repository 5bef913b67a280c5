#include "apps/cli/own_program.h"

#include <cstdlib>
#include <filesystem>

#include "paceline/engine/core/check.h"

#include "paceline_commit.h"

namespace paceline::apps {

std::string version_text() {
  const std::string commit = PACELINE_COMMIT;
  return "paceline " PACELINE_VERSION " (" + (commit.empty() ? "" : "commit " + commit + ", ") +
         PACELINE_COMPILER ", " PACELINE_BUILD_TYPE ", " PACELINE_LIBTORCH ")";
}

std::string version_number() { return PACELINE_VERSION; }

bool built_with_libtorch() { return PACELINE_WITH_LIBTORCH != 0; }
bool built_with_c10d_gloo() { return built_with_libtorch() && PACELINE_HAS_C10D_GLOO != 0; }

std::string own_program() { return std::filesystem::read_symlink("/proc/self/exe").string(); }

std::string contestants_folder() {
  return std::filesystem::canonical("/proc/self/exe").parent_path().parent_path() / "libexec" /
         "paceline";
}

void require_working_directory() {
  std::error_code error;
  const auto here = std::filesystem::current_path(error);
  if (!error) return;
  const char* name = std::getenv("PWD");
  fail(ErrorCode::kSystem,
       "the working directory{}{} cannot be used: {}. It was removed and perhaps created again; "
       "change to an existing one (cd) and start again",
       name == nullptr ? "" : " ", name == nullptr ? "" : name, error.message());
}

}  // namespace paceline::apps
