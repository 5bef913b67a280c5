#include "paceline/engine/collectives/backends/nccl/device_library.h"

#include <cstdlib>
#include <filesystem>

#include <dlfcn.h>
#include <link.h>

#include "paceline/engine/core/check.h"

namespace paceline {
namespace {

std::string path_of(void* library, const char* name) {
  link_map* map = nullptr;
  if (dlinfo(library, RTLD_DI_LINKMAP, &map) != 0 || map == nullptr) return name;
  std::error_code error;
  const auto real = std::filesystem::canonical(map->l_name, error);
  return error ? map->l_name : real.string();
}

}  // namespace

void* DeviceLibrary::find(const char* name) const { return dlsym(handle, name); }

void DeviceLibrary::refuse(const char* name, const char* wanted) const {
  fail(ErrorCode::kUnsupported,
       "{} is not a {}: it lacks {}; install another one, or name one in {}", path, wanted, name,
       variable);
}

DeviceLibrary load_device_library(const char* what, const char* variable,
                                  const std::vector<const char*>& names, const char* advice) {
  const char* const chosen = std::getenv(variable);
  const bool is_chosen = chosen != nullptr && *chosen != '\0';
  const auto candidates = is_chosen ? std::vector{chosen} : names;
  std::string why;
  for (const int only_loaded : {RTLD_NOLOAD, 0}) {
    for (const char* const name : candidates) {
      if (void* const handle = dlopen(name, RTLD_NOW | RTLD_LOCAL | only_loaded)) {
        return {handle, path_of(handle, name), variable};
      }
      const char* const error = dlerror();
      if (why.empty() && only_loaded == 0) why = error != nullptr ? error : name;
    }
  }
  fail(ErrorCode::kUnsupported, "{} cannot be loaded: {}; {}, or name its file in {}", what, why,
       advice, variable);
}

}  // namespace paceline
