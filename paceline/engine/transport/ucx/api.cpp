#include "paceline/engine/transport/ucx/api.h"

#include <cstdlib>

#include <dlfcn.h>

namespace paceline::ucx {
namespace {

template <class Function>
bool find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  return function != nullptr;
}

struct Loaded {
  Api api;
  std::string why;  // why UCX is not available; empty if it is loaded
  Loaded();
};

// Sets variables that UCX reads when it is loaded, unless the user has set them: this library
// reports UCX's errors itself, and leaves crashes to the crash reporter.
//
// To notice freed memory, UCX patches the C library's mmap(), brk() and others with jumps, and
// tests them whenever a context is made. For brk() it asks the kernel for the end of the heap and
// stores the answer in the C library's variable, without malloc()'s lock. If another thread's
// malloc() has moved the end in between, the next malloc() that moves it finds its heap cut ("break
// adjusted to free malloc space"), and the process is aborted. Only the cache of registrations for
// RDMA devices needs to notice freed memory.
void set_defaults() {
  constexpr int kKeepTheUsers = 0;
  setenv("UCX_LOG_LEVEL", "fatal", kKeepTheUsers);
  setenv("UCX_HANDLE_ERRORS", "none", kKeepTheUsers);
  setenv("UCX_MEM_EVENTS", "n", kKeepTheUsers);
}

Loaded::Loaded() {
  set_defaults();
  void* const ucp = dlopen("libucp.so.0", RTLD_NOW | RTLD_LOCAL);
  void* const uct = dlopen("libuct.so.0", RTLD_NOW | RTLD_LOCAL);
  void* const ucs = dlopen("libucs.so.0", RTLD_NOW | RTLD_LOCAL);
  if (ucp == nullptr || uct == nullptr || ucs == nullptr) {
    const char* error = dlerror();
    why = error != nullptr ? error : "libucp.so.0 was not found";
    return;
  }
#define PACELINE_FIND(library, name) \
  if (!find(library, #name, api.name)) why = "libucp.so.0 has no " #name;
  PACELINE_UCX_FUNCTIONS(PACELINE_FIND)
#undef PACELINE_FIND
}

}  // namespace

const Api* Api::load(std::string* why) {
  // Never destroyed, because the library stays loaded.
  static const Loaded* const loaded = new Loaded;
  if (why != nullptr) *why = loaded->why;
  return loaded->why.empty() ? &loaded->api : nullptr;
}

}  // namespace paceline::ucx
