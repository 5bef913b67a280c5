#pragma once

// Opening, replacing and recognising files that other people or programs may have made. Somebody
// may have put something else under the name that is expected: a symbolic link, a FIFO, a device, a
// second name of another file. A program that follows such a link writes, empties or removes what
// it points to, with the rights of the user who runs it; one that opens a FIFO waits for its other
// end.
//
// All of these set errno as open() does. describe_refusal() puts their own refusals into words.
//
// Thread safety: free functions without state.

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include <sys/types.h>

#include "paceline/engine/core/system/fd.h"

namespace paceline {

// Opens as open() does, but no component of `path` may be a symbolic link: ELOOP. Close-on-exec.
Fd open_without_links(const std::string& path, int flags, mode_t mode = 0);

// Returns a path without symbolic links to what a user's path names: the path itself if it has no
// links, otherwise what realpath() gives, as far as it exists.
std::string without_links(const std::string& path);
// As without_links(), but leaves the last component as it is: for a file that is about to be
// replaced.
std::string in_folder_without_links(const std::string& path);

// Opens a regular file for reading; if `path` is a link, what it points to. It neither waits for
// the other end of a FIFO nor reads a device: ENOTSUP.
Fd open_to_read(const std::string& path);
// Opens a regular file for writing, and makes it where `flags` has O_CREAT. ELOOP for a link,
// ENOTSUP for anything else, EMLINK for a file that has a second name, and EPERM for one that
// belongs to a user who may not own it (may_own()). O_TRUNC takes effect after these checks.
Fd open_to_write(const std::string& path, int flags, mode_t mode = 0644);

// Whether `owner` may own what is in `folder`: this user may, and so may the folder's owner, as
// whom a network file system may show every user. Root may write what anybody owns.
bool may_own(uid_t owner, const std::string& folder);

// "it is a symbolic link", "it is not a regular file", ..., or describe_errno().
std::string describe_refusal(int error_number);

// A file that appears whole: it is written under a name of its own, which nobody can have prepared,
// and then takes its place by a rename. A link that stands in that place is replaced, not followed.
//
// Thread safety: none.
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

// Readers of data sets, weights, images and texts look at the first bytes of a file before they
// interpret anything: it may not be the file that was meant.

// The thing that an unfinished download leaves in a file's place, as a phrase that says what to do:
// "a pointer of Git LFS, ...", "a web page, ...". Empty for any other file.
std::string_view mistaken_file(std::span<const std::byte> head);

// The number of bytes before a text begins: 3 for UTF-8's byte order mark, otherwise 0.
// Error(kCorrupt) as `where: …` for UTF-16, for UTF-32 and for a pointer of Git LFS. `head` needs 4
// bytes for the marks and 64 for the pointer, unless the text is shorter.
std::size_t text_start(std::span<const std::byte> head, std::string_view where);

}  // namespace paceline
