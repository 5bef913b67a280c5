#include "apps/version.h"

namespace paceline::apps {

std::string version_text() {
  return "paceline " PACELINE_VERSION " (" PACELINE_COMPILER ", " PACELINE_BUILD_TYPE
         ", " PACELINE_LIBTORCH ")";
}

std::string version_number() { return PACELINE_VERSION; }

bool built_with_libtorch() { return PACELINE_WITH_LIBTORCH != 0; }
bool built_with_c10d_gloo() { return built_with_libtorch() && PACELINE_HAS_C10D_GLOO != 0; }

}  // namespace paceline::apps
