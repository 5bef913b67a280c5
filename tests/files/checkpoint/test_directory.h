#pragma once

// A new folder for one test, removed with everything in it, and whole files as strings.

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include <stdlib.h>

#include "paceline/engine/core/error.h"
#include "paceline/engine/core/error_text.h"

namespace paceline::testing {

class TestDirectory {
 public:
  TestDirectory() {
    std::string name = std::filesystem::temp_directory_path() / "paceline-checkpoint-XXXXXX";
    if (::mkdtemp(name.data()) == nullptr) throw system_error("mkdtemp " + name);
    path_ = std::filesystem::canonical(name);  // no symbolic links
  }
  ~TestDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TestDirectory(const TestDirectory&) = delete;
  TestDirectory& operator=(const TestDirectory&) = delete;

  const std::string& path() const { return path_; }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

inline std::string read_text(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

inline void write_text(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << text;
}

}  // namespace paceline::testing
