#pragma once

// Image files on a disk: listing them by class, and reading one whole.
//
// Thread safety: free functions, and constant values.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace paceline::images {

// Reads a file whole, after its size was checked. Error(kSystem) with the path when the system
// refuses, kInvalid for anything but a regular file of at most `max_bytes`, kCorrupt for a file
// whose size changes meanwhile.
std::vector<std::byte> read_image_file(const std::string& path, std::int64_t max_bytes);

// A name for a message: what is not UTF-8, or is not to be printed, as \xNN.
std::string printable(std::string_view name);

// The images under a folder that has a folder for each class, in the order of torchvision's
// ImageFolder: classes by name, in each the folders by path, in each the files by name. Files of
// other types are left out; those ending in .jpg, .jpeg or .png, in any case, are taken unread.
//
// Names are bytes, of any encoding. Links are followed. Memory: a file's name and 16 bytes.
class ImageList {
 public:
  // Error(kInvalid): the folder is missing, has no folder in it, a class has no image, or a link
  // leads back to a folder that it is in. Error(kSystem) for a folder that cannot be read, which
  // torchvision would leave out silently. Each names the path.
  explicit ImageList(const std::string& folder);

  std::int64_t size() const { return static_cast<std::int64_t>(images_.size()); }
  const std::vector<std::string>& classes() const { return classes_; }
  // Requires: index is in [0, size()).
  std::string path(std::int64_t index) const;
  std::int64_t label(std::int64_t index) const;  // the place of its class in classes()
  // Files that torchvision takes, and that are not decoded here (.webp, .bmp, .tif and others).
  std::int64_t num_of_other_types() const { return num_of_other_types_; }

 private:
  struct Entry {
    std::size_t name;  // where it begins in names_
    std::uint32_t folder, label;
  };
  void add_class(const std::string& path, std::uint32_t label);

  std::vector<std::string> classes_, folders_;
  std::string names_;  // each ends with a 0
  std::vector<Entry> images_;
  std::int64_t num_of_other_types_ = 0;
};

}  // namespace paceline::images
