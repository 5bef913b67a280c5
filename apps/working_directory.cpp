#include "apps/working_directory.h"

#include <cstdlib>
#include <filesystem>

#include "paceline/engine/core/check.h"

namespace paceline::apps {

void require_working_directory() {
  std::error_code error;
  const auto here = std::filesystem::current_path(error);
  if (!error) return;
  const char* name = std::getenv("PWD");
  fail(ErrorCode::kSystem,
       "the working directory{}{} cannot be used: {}. It was removed, perhaps created again since; "
       "change to an existing one (cd) and start again",
       name == nullptr ? "" : " ", name == nullptr ? "" : name, error.message());
}

}  // namespace paceline::apps
