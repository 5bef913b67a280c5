#include "paceline/engine/core/system/safe_files.h"

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <string_view>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <fmt/format.h>
#include <stdio.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include "paceline/engine/core/authentication.h"
#include "paceline/engine/core/bytes.h"
#include "paceline/engine/core/check.h"
#include "paceline/engine/core/error.h"
#include "paceline/engine/core/error_text.h"
#include "paceline/engine/core/system/io.h"

namespace paceline {

namespace {

Fd refused(int error_number) {
  errno = error_number;
  return {};
}

bool is_link(int folder, const std::string& name) {
  struct stat status {};
  return ::fstatat(folder, name.c_str(), &status, AT_SYMLINK_NOFOLLOW) == 0 &&
         S_ISLNK(status.st_mode);
}

// The kernel reports a link as ELOOP or, where a directory is wanted, as ENOTDIR; with O_PATH alone
// it opens the link itself.
Fd open_component(int folder, const std::string& name, int flags, mode_t mode) {
  Fd file(::openat(folder, name.c_str(), flags | O_NOFOLLOW | O_CLOEXEC, mode));
  if (file && (flags & O_PATH) != 0) {
    struct stat status {};
    if (::fstat(file.get(), &status) != 0) return refused(errno);
    return S_ISLNK(status.st_mode) ? refused(ELOOP) : std::move(file);
  }
  if (file || errno != ENOTDIR) return file;
  return refused(is_link(folder, name) ? ELOOP : ENOTDIR);
}

std::vector<std::string> components_of(std::string_view path) {
  std::vector<std::string> names;
  while (!path.empty()) {
    const auto end = std::min(path.find('/'), path.size());
    const auto name = path.substr(0, end);
    if (!name.empty() && name != ".") names.emplace_back(name);
    path.remove_prefix(std::min(end + 1, path.size()));
  }
  return names;
}

// Returns 0 when `file` is a regular file, otherwise the error number.
int obstacle_to_use(const Fd& file, struct stat& status) {
  if (::fstat(file.get(), &status) != 0) return errno;
  return S_ISREG(status.st_mode) ? 0 : ENOTSUP;
}

std::string folder_of(const std::string& path) {
  const auto slash = path.rfind('/');
  return slash == std::string::npos ? "." : path.substr(0, slash + 1);
}

int obstacle_to_writing(const Fd& file, const std::string& path) {
  struct stat status {};
  if (const int error = obstacle_to_use(file, status)) return error;
  if (status.st_nlink > 1) return EMLINK;
  return may_own(status.st_uid, folder_of(path)) ? 0 : EPERM;
}

}  // namespace

bool may_own(uid_t owner, const std::string& folder) {
  const uid_t self = ::geteuid();
  if (owner == self || self == 0) return true;
  struct stat status {};
  return ::stat(folder.c_str(), &status) == 0 && status.st_uid == owner;
}

Fd open_without_links(const std::string& path, int flags, mode_t mode) {
  if (path.empty()) return refused(ENOENT);
  constexpr int kFolder = O_PATH | O_DIRECTORY;
  const auto names = components_of(path);
  const char* const start = path.front() == '/' ? "/" : ".";
  if (names.empty()) return open_component(AT_FDCWD, start, flags, mode);
  Fd folder = open_component(AT_FDCWD, start, kFolder, 0);
  for (std::size_t i = 0; folder && i + 1 < names.size(); ++i)
    folder = open_component(folder.get(), names[i], kFolder, 0);
  if (!folder) return folder;
  if (path.back() == '/') flags |= O_DIRECTORY;
  return open_component(folder.get(), names.back(), flags, mode);
}

std::string without_links(const std::string& path) {
  if (open_without_links(path, O_PATH)) return path;
  std::error_code error;
  const auto real = std::filesystem::weakly_canonical(path, error);
  return error ? path : real.string();
}

std::string in_folder_without_links(const std::string& path) {
  const auto slash = path.rfind('/');
  if (slash == std::string::npos || slash == 0) return path;
  return without_links(path.substr(0, slash)) + path.substr(slash);
}

Fd open_to_read(const std::string& path) {
  Fd file(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
  struct stat status {};
  if (!file) return file;
  const int problem = obstacle_to_use(file, status);
  return problem == 0 ? std::move(file) : refused(problem);
}

Fd open_to_write(const std::string& path, int flags, mode_t mode) {
  constexpr int kNeverWaits = O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC;
  Fd file(::open(path.c_str(), (flags & ~O_TRUNC) | kNeverWaits, mode));
  if (!file) return errno == ENXIO ? refused(ENOTSUP) : std::move(file);  // FIFO or socket
  if (const int problem = obstacle_to_writing(file, path)) return refused(problem);
  if ((flags & O_TRUNC) != 0 && ::ftruncate(file.get(), 0) != 0) return refused(errno);
  return file;
}

std::string describe_refusal(int error_number) {
  switch (error_number) {
    case ELOOP:
      return "it is a symbolic link";
    case ENOTSUP:
      return "it is not a regular file";
    case EMLINK:
      return "it is also another file (it has more than one name)";
    default:
      return describe_errno(error_number);
  }
}

std::string folder_problem(const std::string& path) {
  for (std::size_t at = path.find('/', 1); at != std::string::npos; at = path.find('/', at + 1)) {
    const std::string folder = path.substr(0, at);
    struct stat status {};
    if (::stat(folder.c_str(), &status) != 0) {
      const bool is_missing = errno == ENOENT;
      const bool is_link = ::lstat(folder.c_str(), &status) == 0 && S_ISLNK(status.st_mode);
      if (is_missing && is_link) return "the link " + folder + " points to nothing";
      if (is_missing) return "the folder " + folder + " does not exist";
      return folder + ": " + describe_errno(errno);
    }
    if (!S_ISDIR(status.st_mode)) return folder + " is a file, not a folder";
    if (::access(folder.c_str(), X_OK) != 0)
      return "the folder " + folder + " is closed to this user";
  }
  return "";
}

std::string describe_refusal(const std::string& path, int error_number) {
  const bool may_be_folder =
      error_number == ENOENT || error_number == ENOTDIR || error_number == EACCES;
  const std::string problem = may_be_folder ? folder_problem(path) : "";
  return problem.empty() ? describe_refusal(error_number) : problem;
}

FileDraft::FileDraft(std::string path, mode_t mode)
    : path_(std::move(path)),
      draft_(fmt::format("{}.{}.new", path_, random_hex(8))),
      file_(::open(draft_.c_str(), O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode)) {
  if (!file_)
    fail(ErrorCode::kSystem, "{}: cannot create: {}", path_, describe_refusal(draft_, errno));
}

FileDraft::~FileDraft() {
  if (!is_published_) ::unlink(draft_.c_str());
}

void FileDraft::publish() {
  if (::rename(draft_.c_str(), path_.c_str()) != 0)
    throw system_error(fmt::format("renaming {} to {}", draft_, path_));
  is_published_ = true;
}

void replace_file(const std::string& path, std::string_view text, mode_t mode) {
  FileDraft draft(path, mode);
  if (!write_whole(draft.fd(), as_bytes(text))) throw system_error("writing " + path);
  draft.publish();
}

namespace {

using namespace std::string_view_literals;

constexpr std::string_view kUtf8Mark = "\xEF\xBB\xBF";
constexpr std::string_view kSpaces = " \t\r\n";
constexpr std::string_view kLfsPointer =
    "a pointer of Git LFS, not the file itself: fetch it with 'git lfs pull'";

std::string_view text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

bool begins_with(std::string_view text, std::string_view words) {
  return text.size() >= words.size() && ::strncasecmp(text.data(), words.data(), words.size()) == 0;
}

bool is_lfs_pointer(std::string_view text) {
  return text.starts_with("version https://git-lfs.github.com/spec/") ||
         text.starts_with("version https://hawser.github.com/spec/");
}

// The encoding that a byte order mark announces. The mark of UTF-32LE begins with the mark of
// UTF-16LE, so UTF-32LE is checked first.
std::string_view marked_encoding(std::string_view text) {
  if (text.starts_with("\xFF\xFE\0\0"sv)) return "UTF-32LE";
  if (text.starts_with("\0\0\xFE\xFF"sv)) return "UTF-32BE";
  if (text.starts_with("\xFF\xFE"sv)) return "UTF-16LE";
  if (text.starts_with("\xFE\xFF"sv)) return "UTF-16BE";
  return {};
}

}  // namespace

std::string_view mistaken_file(std::span<const std::byte> head) {
  std::string_view text = text_of(head);
  if (is_lfs_pointer(text)) return kLfsPointer;
  if (text.starts_with(kUtf8Mark)) text.remove_prefix(kUtf8Mark.size());
  text.remove_prefix(std::min(text.find_first_not_of(kSpaces), text.size()));
  for (const auto begin : {"<!doctype"sv, "<html"sv, "<head"sv, "<body"sv, "<?xml"sv, "<error"sv}) {
    if (begins_with(text, begin)) {
      return "a web page, not the file itself: download it from the link that gives the raw file "
             "(on Hugging Face, /resolve/ instead of /blob/)";
    }
  }
  return {};
}

std::size_t text_start(std::span<const std::byte> head, std::string_view where) {
  const std::string_view text = text_of(head);
  if (is_lfs_pointer(text)) fail(ErrorCode::kCorrupt, "{}: {}", where, kLfsPointer);
  const std::string_view encoding = marked_encoding(text);
  if (!encoding.empty()) {
    fail(ErrorCode::kCorrupt, "{0}: the text is {1}, not UTF-8; convert it: iconv -f {1} -t UTF-8",
         where, encoding);
  }
  return text.starts_with(kUtf8Mark) ? kUtf8Mark.size() : 0;
}

}  // namespace paceline
