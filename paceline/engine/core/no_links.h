#pragma once

// Opening files in folders in which others may have put something under the name that is expected:
// a symbolic link, a FIFO, a device, a second name of another file. A program that follows such a
// link writes, empties or removes what it points to, with the rights of the user who runs it; one
// that opens a FIFO waits for its other end.
//
// All of these set errno as open() does. describe_refusal() puts their own refusals into words.
//
// Thread safety: free functions without state.

#include <string>

#include <sys/types.h>

#include "paceline/engine/core/fd.h"

namespace paceline {

// Opens as open() does, but no component of `path` may be a symbolic link: ELOOP. Close-on-exec.
Fd open_without_links(const std::string& path, int flags, mode_t mode = 0);
// Does the same on a kernel without openat2() (before 5.6), with a call for each component.
Fd open_step_by_step(const std::string& path, int flags, mode_t mode = 0);

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

}  // namespace paceline
