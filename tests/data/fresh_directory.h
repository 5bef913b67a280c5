#pragma once

// A new, empty directory that is removed with everything in it, and files to put there.

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include <zlib.h>

#include "paceline/core/error.h"

namespace paceline::testing {

class FreshDirectory {
 public:
  FreshDirectory() {
    std::string name = (std::filesystem::temp_directory_path() / "paceline-data-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) throw system_error("mkdtemp " + name);
    path_ = name;
  }
  FreshDirectory(const FreshDirectory&) = delete;
  FreshDirectory& operator=(const FreshDirectory&) = delete;
  ~FreshDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }

  const std::string& path() const { return path_; }
  std::string write(const std::string& name, const std::string& bytes) const {
    std::ofstream(path_ + "/" + name, std::ios::binary | std::ios::trunc) << bytes;
    return path_ + "/" + name;
  }
  std::string write_gzipped(const std::string& name, const std::string& bytes) const {
    const auto path = path_ + "/" + name;
    gzFile file = ::gzopen(path.c_str(), "wb");
    ::gzwrite(file, bytes.data(), static_cast<unsigned>(bytes.size()));
    ::gzclose(file);
    return path;
  }

 private:
  std::string path_;
};

}  // namespace paceline::testing
