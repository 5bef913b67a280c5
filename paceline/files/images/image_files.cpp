#include "paceline/files/images/image_files.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <string_view>
#include <utility>

#include <fcntl.h>
#include <sys/stat.h>

#include "paceline/engine/core/check.h"
#include "paceline/engine/core/error_text.h"
#include "paceline/engine/core/system/fd.h"
#include "paceline/engine/core/system/io.h"

namespace paceline::images {

namespace {

// The length of the UTF-8 sequence at the beginning of the text; 0 if it is invalid or not
// printable.
std::size_t sequence_size(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned first = byte(0);
  if (first < 0x80) return first >= 0x20 && first != 0x7f ? 1 : 0;
  const std::size_t size = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  if (first < 0xc2 || first > 0xf4 || size > text.size()) return 0;
  for (std::size_t i = 1; i < size; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
  }
  // Overlong encodings, surrogates, and codes beyond Unicode are invalid.
  const unsigned second = byte(1);
  if ((first == 0xe0 && second < 0xa0) || (first == 0xed && second >= 0xa0) ||
      (first == 0xf0 && second < 0x90) || (first == 0xf4 && second >= 0x90))
    return 0;
  return size;
}

}  // namespace

std::string printable(std::string_view name) {
  std::string text;
  while (!name.empty()) {
    const std::size_t size = sequence_size(name);
    if (size > 0) {
      text += name.substr(0, size);
    } else {
      text += fmt::format("\\x{:02x}", static_cast<unsigned char>(name[0]));
    }
    name.remove_prefix(std::max<std::size_t>(size, 1));
  }
  return text;
}

std::vector<std::byte> read_image_file(const std::string& path, std::int64_t max_bytes) {
  // O_NONBLOCK, so that open() does not wait for the writer of a pipe.
  const Fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file) throw system_error(printable(path));
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) throw system_error(printable(path));
  check(S_ISREG(status.st_mode), "{} is not a regular file", printable(path));
  check(status.st_size <= max_bytes,
        "{}: {} bytes exceed the limit of {} (DecodeOptions::max_file_bytes)", printable(path),
        status.st_size, max_bytes);
  const auto size = static_cast<std::size_t>(status.st_size);
  std::vector<std::byte> bytes(size + 1);  // one byte more, to detect the end
  const ssize_t got = read_whole(file.get(), bytes);
  if (got < 0) throw system_error(printable(path));
  if (static_cast<std::size_t>(got) != size) {
    fail(ErrorCode::kCorrupt, "{}: its size changed while it was read, from {} to {} bytes",
         printable(path), size, got);
  }
  bytes.resize(size);
  return bytes;
}

namespace {

namespace fs = std::filesystem;
using Names = std::vector<std::string>;

constexpr std::array<std::string_view, 3> kTaken = {".jpg", ".jpeg", ".png"};
constexpr std::array<std::string_view, 6> kOthers = {".ppm", ".bmp",  ".pgm",
                                                     ".tif", ".tiff", ".webp"};

bool ends_with_any(std::string name, const auto& endings) {
  for (char& letter : name) {
    if (letter >= 'A' && letter <= 'Z') letter = static_cast<char>(letter - 'A' + 'a');
  }
  return std::ranges::any_of(endings, [&](std::string_view end) { return name.ends_with(end); });
}

// The sorted names in a folder: first those of folders, including links to folders, then all
// others.
std::pair<Names, Names> names_in(const std::string& path) {
  Names folders, files;
  std::error_code error;
  fs::directory_iterator entry(path, error);
  for (; !error && entry != fs::directory_iterator(); entry.increment(error)) {
    std::error_code no_such_target;
    const bool is_folder = entry->is_directory(no_such_target);
    (is_folder ? folders : files).push_back(entry->path().filename().string());
  }
  if (error) throw system_error(printable(path), error.value());
  std::ranges::sort(folders);
  std::ranges::sort(files);
  return {std::move(folders), std::move(files)};
}

struct FolderFiles {
  std::string path;
  Names files;
};

// Lists a folder and everything below it. `above`: the folders that contain it, to detect a cycle.
void walk(const std::string& path, std::vector<std::pair<struct stat, std::string>>& above,
          std::vector<FolderFiles>& found) {
  struct stat own {};
  if (::stat(path.c_str(), &own) != 0) throw system_error(printable(path));
  for (const auto& [other, other_path] : above) {
    check(own.st_dev != other.st_dev || own.st_ino != other.st_ino,
          "{} links back to {}, which contains it: remove this link", printable(path),
          printable(other_path));
  }
  auto [folders, files] = names_in(path);
  found.push_back({path, std::move(files)});
  above.emplace_back(own, path);
  for (const std::string& folder : folders) walk(path + "/" + folder, above, found);
  above.pop_back();
}

Names class_names(const std::string& folder) {
  std::error_code error;
  check(fs::is_directory(folder, error), "{}: no such folder", printable(folder));
  Names classes = names_in(folder).first;
  check(!classes.empty(), "{} contains no folders; it must have one for each class",
        printable(folder));
  return classes;
}

}  // namespace

ImageList::ImageList(const std::string& folder) : classes_(class_names(folder)) {
  Names empty;
  for (std::size_t label = 0; label < classes_.size(); ++label) {
    const std::size_t before = images_.size();
    add_class(folder + "/" + classes_[label], static_cast<std::uint32_t>(label));
    if (images_.size() == before) empty.push_back(printable(classes_[label]));
  }
  if (empty.empty()) return;
  const std::size_t count = empty.size();
  if (count > 5) empty.resize(5);
  fail(ErrorCode::kInvalid, "{}: no .jpg, .jpeg or .png in {} of {} classes: {}{}",
       printable(folder), count, classes_.size(), fmt::join(empty, ", "), count > 5 ? ", ..." : "");
}

void ImageList::add_class(const std::string& path, std::uint32_t label) {
  std::vector<std::pair<struct stat, std::string>> above;
  std::vector<FolderFiles> found;
  walk(path, above, found);
  std::ranges::sort(found, {}, &FolderFiles::path);
  for (const auto& [folder, files] : found) {
    folders_.push_back(folder);
    for (const std::string& file : files) {
      num_of_other_types_ += ends_with_any(file, kOthers);
      if (!ends_with_any(file, kTaken)) continue;
      images_.push_back({names_.size(), static_cast<std::uint32_t>(folders_.size() - 1), label});
      names_.append(file).push_back('\0');
    }
  }
}

std::string ImageList::path(std::int64_t index) const {
  const Entry& entry = images_[static_cast<std::size_t>(index)];
  return folders_[entry.folder] + "/" + (names_.data() + entry.name);
}

std::int64_t ImageList::label(std::int64_t index) const {
  return images_[static_cast<std::size_t>(index)].label;
}

}  // namespace paceline::images
