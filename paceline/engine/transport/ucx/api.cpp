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
  std::string why;  // not; empty when it is loaded
  Loaded();
};

// What UCX reads when it is loaded, unless the user has said otherwise: what fails is this
// library's to say, and a crash the crash reporter's.
//
// To notice memory that is given back, UCX writes jumps over the C library's mmap(), brk() and
// others, and whenever a context is made tries them out. For brk() it asks the kernel for the
// heap's end and stores the answer as the C library's, without malloc()'s lock: where another
// thread's malloc() has moved the end meanwhile, the next one that does finds its heap cut ("break
// adjusted to free malloc space") and the process is aborted. Only the cache of registrations for
// RDMA devices needs to notice such memory.
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
  static const Loaded* const loaded = new Loaded;  // as long as the library, which stays
  if (why != nullptr) *why = loaded->why;
  return loaded->why.empty() ? &loaded->api : nullptr;
}

}  // namespace paceline::ucx
