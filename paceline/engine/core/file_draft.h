#pragma once

// A file that appears whole: it is written under a name of its own, which nobody can have prepared,
// and then takes its place by a rename. A link that stands in that place is replaced, not followed.
//
// Thread safety: none.

#include <string>
#include <string_view>

#include <sys/types.h>

#include "paceline/engine/core/fd.h"

namespace paceline {

class FileDraft {
 public:
  // Error(kSystem) when it cannot be made. `mode` is subject to the umask.
  explicit FileDraft(std::string path, mode_t mode = 0666);
  // Removes what was not published.
  ~FileDraft();
  FileDraft(const FileDraft&) = delete;
  FileDraft& operator=(const FileDraft&) = delete;

  // The open file, for reading and writing.
  int fd() const { return file_.get(); }
  const std::string& path() const { return path_; }
  // Error(kSystem) when the file cannot take its place.
  void publish();

 private:
  const std::string path_, draft_;
  Fd file_;
  bool is_published_ = false;
};

// A file with this text, whatever was there before. Error(kSystem) when it cannot be written; what
// was there stays.
void replace_file(const std::string& path, std::string_view text, mode_t mode = 0666);

}  // namespace paceline
