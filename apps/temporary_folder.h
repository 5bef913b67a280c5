#pragma once

#include <cstdlib>
#include <filesystem>
#include <string>
#include <system_error>

#include "paceline/engine/core/error.h"

namespace paceline::apps {

// A folder of its own, gone with this value.
class TemporaryFolder {
 public:
  // Error(kSystem) where none can be made.
  TemporaryFolder() {
    path_ = (std::filesystem::temp_directory_path() / "paceline-advise-XXXXXX").string();
    if (mkdtemp(path_.data()) == nullptr) throw system_error("making a folder " + path_);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  ~TemporaryFolder() {
    std::error_code error;
    std::filesystem::remove_all(path_, error);
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace paceline::apps
