#pragma once

// Whether a process that is executed now would load what this one has loaded. A program that is
// updated while its job runs must not go on from the old image without a word, so the fork server
// notes the files while they are fresh and compares before each fork.
//
// The names are those under which the dynamic linker opened the libraries, links not followed: an
// update that only turns a link is also one. A file that was replaced, written to or removed counts
// as another; a library that the linker would find earlier in its path by now is not noticed.
//
// May be used before the program's own static objects are made: no log, no streams, no exceptions
// but bad_alloc.

#include <optional>
#include <string>
#include <vector>

#include <sys/types.h>
#include <time.h>

namespace paceline {

// Which file a name means, in which state. A value.
struct FileVersion {
  dev_t device = 0;
  ino_t number = 0;
  off_t size = 0;
  timespec modified{};

  // Nothing when there is no such file. Follows links.
  static std::optional<FileVersion> of(const char* path);
  bool operator==(const FileVersion& other) const;
};

// The shared libraries of this process, without the program itself. A value.
class LoadedFiles {
 public:
  // Those that are loaded at this moment.
  LoadedFiles();
  // The name of the first that is not what it was.
  std::optional<std::string> find_changed() const;

 private:
  struct File {
    std::string name;
    std::optional<FileVersion> version;  // nothing: it was gone by then
  };
  std::vector<File> files_;
};

}  // namespace paceline
