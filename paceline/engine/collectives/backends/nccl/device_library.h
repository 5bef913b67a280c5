#pragma once

// A GPU vendor's library, loaded at run time, because one program runs on machines with and without
// GPUs. Thread safety: every function may be called from any thread.

#include <string>
#include <vector>

namespace paceline {

struct DeviceLibrary {
  void* handle = nullptr;  // never closed: the functions stay valid until the process ends
  std::string path;        // the file that was loaded, with symbolic links resolved
  std::string variable;    // the environment variable that can name another file

  // The address of a function; null if the library has none of that name.
  void* find(const char* name) const;
  // Stores the function's address in `function`. Error(kUnsupported), which names the library that
  // is `wanted`, if the library lacks the function.
  template <class Function>
  void require(const char* name, const char* wanted, Function& function) const {
    function = reinterpret_cast<Function>(find(name));
    if (function == nullptr) refuse(name, wanted);
  }

 private:
  [[noreturn]] void refuse(const char* name, const char* wanted) const;
};

// Loads the library that the environment variable `variable` names. If it is not set, uses a
// library of `names` that the process has already loaded (LibTorch with CUDA brings its own), or
// else loads the first one that the loader finds. Error(kUnsupported), with `advice`, if none can
// be loaded.
DeviceLibrary load_device_library(const char* what, const char* variable,
                                  const std::vector<const char*>& names, const char* advice);

}  // namespace paceline
