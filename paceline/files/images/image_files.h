#pragma once

// Image files on a disk: listing them by class, and reading a whole file.
//
// Thread safety: free functions without state; an ImageList is constant.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace paceline::images {

// Reads a whole file after checking its size. Throws Error(kSystem), which names the path, when the
// system refuses, kInvalid for anything but a regular file of at most `max_bytes`, and kCorrupt for
// a file whose size changes meanwhile.
std::vector<std::byte> read_image_file(const std::string& path, std::int64_t max_bytes);

// Returns `name` as messages show it: bytes that are not UTF-8 or not printable appear as \xNN.
std::string printable(std::string_view name);

// The images under a folder that has a folder for each class, in the order of torchvision's
// ImageFolder: classes by name, within each class the folders by path, and within each folder the
// files by name. Files ending in .jpg, .jpeg or .png, in upper or lower case, are listed without
// being read; files of other types are left out.
//
// Names are bytes in any encoding. Links are followed. For each file, the list stores the
// name and 16 bytes.
class ImageList {
 public:
  // Throws Error(kInvalid) when the folder is missing or contains no folder, when a class has no
  // image, and when a link leads back to a folder that contains it. Throws Error(kSystem) for a
  // folder that cannot be read, which torchvision would skip silently. Both name the path.
  explicit ImageList(const std::string& folder);

  std::int64_t size() const { return static_cast<std::int64_t>(images_.size()); }
  const std::vector<std::string>& classes() const { return classes_; }
  // Requires: index is in [0, size()).
  std::string path(std::int64_t index) const;
  std::int64_t label(std::int64_t index) const;  // the index of the image's class in classes()
  // The number of files that torchvision reads but this library does not decode (.webp, .bmp, .tif
  // and others).
  std::int64_t num_of_other_types() const { return num_of_other_types_; }

 private:
  struct Entry {
    std::size_t name;  // where the name begins in names_
    std::uint32_t folder, label;
  };
  void add_class(const std::string& path, std::uint32_t label);

  std::vector<std::string> classes_, folders_;
  std::string names_;  // each name ends with a 0
  std::vector<Entry> images_;
  std::int64_t num_of_other_types_ = 0;
};

}  // namespace paceline::images
