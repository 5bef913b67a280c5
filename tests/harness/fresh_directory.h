#pragma once

// A new, empty directory that is removed with everything in it.

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "paceline/engine/core/error.h"
#include "paceline/engine/core/error_text.h"

namespace paceline {

class FreshDirectory {
 public:
  FreshDirectory() {
    std::string name = (std::filesystem::temp_directory_path() / "paceline-test-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) throw system_error("mkdtemp " + name);
    path_ = name;
  }
  FreshDirectory(const FreshDirectory&) = delete;
  FreshDirectory& operator=(const FreshDirectory&) = delete;
  ~FreshDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }

  std::string file(const std::string& name) const { return path_ + "/" + name; }
  // Writes a file and returns its path.
  std::string write(const std::string& name, const std::string& bytes) const {
    std::ofstream(file(name), std::ios::binary | std::ios::trunc) << bytes;
    return file(name);
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace paceline
