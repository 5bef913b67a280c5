#include "paceline/engine/rendezvous/loaded_files.h"

#include <algorithm>
#include <cstring>

#include <link.h>
#include <sys/stat.h>

namespace paceline {

std::optional<FileVersion> FileVersion::of(const char* path) {
  struct stat file {};
  if (stat(path, &file) != 0) return std::nullopt;
  return FileVersion{file.st_dev, file.st_ino, file.st_size, file.st_mtim};
}

bool FileVersion::operator==(const FileVersion& other) const {
  return device == other.device && number == other.number && size == other.size &&
         modified.tv_sec == other.modified.tv_sec && modified.tv_nsec == other.modified.tv_nsec;
}

LoadedFiles::LoadedFiles() {
  // The program has no name here, and the kernel's part of the process none with a folder.
  const auto note = [](dl_phdr_info* object, std::size_t, void* files) {
    const char* const name = object->dlpi_name;
    if (std::strchr(name, '/') != nullptr) {
      static_cast<std::vector<File>*>(files)->push_back({name, FileVersion::of(name)});
    }
    return 0;
  };
  dl_iterate_phdr(note, &files_);
}

std::optional<std::string> LoadedFiles::find_changed() const {
  const auto changed = std::find_if(files_.begin(), files_.end(), [](const File& file) {
    return !file.version || FileVersion::of(file.name.c_str()) != file.version;
  });
  return changed == files_.end() ? std::nullopt : std::optional(changed->name);
}

}  // namespace paceline
