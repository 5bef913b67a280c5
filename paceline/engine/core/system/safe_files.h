#pragma once

// Opening, replacing and recognising files that other users or programs may have made. The expected
// name may belong to something else: a symbolic link, a FIFO, a device, a hard link to another
// file. A program that follows such a link writes or truncates, with its own rights, the file to
// which the link points; a program that opens a FIFO waits for the FIFO's other end.
//
// All open functions set errno as open() does. describe_refusal() explains errors that they add.
//
// Thread safety: any thread may call the functions.

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include <sys/types.h>

#include "paceline/engine/core/system/fd.h"

namespace paceline {

// Opens as open() does, but no component of `path` may be a symbolic link: ELOOP. Close-on-exec.
Fd open_without_links(const std::string& path, int flags, mode_t mode = 0);

// A path to the same file without symbolic links: the path itself if it has no links, otherwise
// realpath() of the part of the path that exists, followed by the rest.
std::string without_links(const std::string& path);
// Like without_links(), but leaves the last component as it is: for a file that is about to be
// replaced.
std::string in_folder_without_links(const std::string& path);

// Opens a regular file for reading, also through a link. Never waits; fails with ENOTSUP for a
// folder, a FIFO or a device, and with ENXIO for a socket.
Fd open_to_read(const std::string& path);
// Opens a regular file for writing, and creates it if `flags` has O_CREAT. Fails with ELOOP for a
// link, ENOTSUP for a FIFO, socket or device, EMLINK for a file with more than one name, and EPERM
// for a file whose owner may_own() rejects. O_TRUNC takes effect after these checks.
Fd open_to_write(const std::string& path, int flags, mode_t mode = 0644);

// Whether a file in `folder` that belongs to `owner` may be written. It may belong to this user or
// to the owner of the folder, because a network file system may show every user as the folder's
// owner. Root may write any file.
bool may_own(uid_t owner, const std::string& folder);

// "it is a symbolic link", "it is not a regular file", ..., or describe_errno().
std::string describe_refusal(int error_number);
// As above, or folder_problem() if a folder of the path is the reason.
std::string describe_refusal(const std::string& path, int error_number);
// A phrase about the first folder of the path that cannot be entered, such as "the folder /runs
// does not exist"; empty if there is no such folder.
std::string folder_problem(const std::string& path);

// Writes a file that appears at its path as a whole: it first has a random temporary name, which no
// other user can predict, and is then renamed. A link at the path is replaced, not followed.
//
// Thread safety: none.
class FileDraft {
 public:
  // Throws Error(kSystem) when the file cannot be created. `mode` is subject to the umask.
  explicit FileDraft(std::string path, mode_t mode = 0666);
  // Removes the file unless it was published.
  ~FileDraft();
  FileDraft(const FileDraft&) = delete;
  FileDraft& operator=(const FileDraft&) = delete;

  // The open file, for reading and writing.
  int fd() const { return file_.get(); }
  const std::string& path() const { return path_; }
  // Renames the file to path(). Throws Error(kSystem) on failure.
  void publish();

 private:
  const std::string path_, draft_;
  Fd file_;
  bool is_published_ = false;
};

// Writes a file with this text, replacing any earlier file. Throws Error(kSystem) when the file
// cannot be written; an earlier file then stays.
void replace_file(const std::string& path, std::string_view text, mode_t mode = 0666);

// Readers of data sets, weights, images and texts check the first bytes of a file before they
// interpret it, because it may not be the file that the user meant.

// Recognises a file that a failed download left instead of the wanted file, and returns a phrase
// that says what to do: "a pointer of Git LFS, ...", "a web page, ...". Empty for any other file.
std::string_view mistaken_file(std::span<const std::byte> head);

// The offset at which a text begins: 3 after a UTF-8 byte order mark, otherwise 0. Throws
// Error(kCorrupt) (`where: …`) for UTF-16, for UTF-32 and for a pointer of Git LFS. `head`: the
// first 64 bytes of the text, or all of a shorter text; 4 bytes suffice to find a byte order mark.
std::size_t text_start(std::span<const std::byte> head, std::string_view where);

}  // namespace paceline
