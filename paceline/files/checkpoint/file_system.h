#pragma once

// Access to the disk for checkpoints: an interface over the system calls, so that a test can make
// the Nth call fail, and functions that read, write or list a whole file or folder.
//
// Each member of FileSystem behaves like its system call: it returns -1 and sets errno on failure,
// and a write may be short. No call follows a symbolic link, because anyone who can write to a
// checkpoint folder could plant one to make this process overwrite or delete other files. A path
// with a link is an error (ELOOP), but unlink(), rename() and exchange() accept a link as the last
// component and act on the link itself. Callers first resolve a user's path (without_links()).
//
// Thread safety: FileSystem::real() keeps no state; every function may be called from any thread.

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <sys/types.h>

#include "paceline/engine/core/error.h"

namespace paceline {

// The disk is full, or the user's quota is used up.
class DiskFull : public Error {
 public:
  using Error::Error;
};

// Throws the error of a failed call: DiskFull, or the Error(kSystem) that system_error() makes.
[[noreturn]] void refuse(const std::string& what, int error_number = errno);

class FileSystem {
 public:
  virtual ~FileSystem() = default;

  virtual int open(const std::string& path, int flags, mode_t mode) = 0;
  virtual ssize_t read_at(int fd, off_t position, std::span<std::byte> bytes) = 0;  // pread()
  virtual ssize_t write(int fd, std::span<const std::byte> bytes) = 0;
  virtual int fsync(int fd) = 0;
  virtual int close(int fd) = 0;
  virtual int mkdir(const std::string& path, mode_t mode) = 0;
  virtual int rename(const std::string& from, const std::string& to) = 0;
  // Swaps two existing paths in one step; EINVAL or ENOSYS if the file system cannot do that.
  virtual int exchange(const std::string& a, const std::string& b) = 0;
  virtual int unlink(const std::string& path) = 0;
  virtual int rmdir(const std::string& path) = 0;
  // Sets whether later writes to this descriptor bypass the kernel's cache (O_DIRECT). Returns
  // false if the file system does not support that.
  virtual bool pass_cache(int fd, bool passes);

  // The file system of this machine. Never destroyed.
  static FileSystem& real();
};

// Functions for a whole regular file: they read it into memory, or write it so that it is on the
// disk when the call returns. Symbolic links, FIFOs and devices are refused, so a planted file can
// neither redirect a read nor block it.

// Error(kCorrupt) when the path is missing, is not a regular file, is larger than `max_bytes`, or
// shrinks while it is read; Error(kSystem) when the operating system refuses.
std::vector<std::byte> read_plain_file(FileSystem& files, const std::string& path,
                                       std::uint64_t max_bytes);

// Opens a regular file for reading; the caller closes the descriptor. Throws the errors of
// read_plain_file(), except those about the size.
int open_plain_file(FileSystem& files, const std::string& path);

// Fills `bytes` from `position` on. Error(kCorrupt) when the file ends earlier.
void read_plain_file_at(FileSystem& files, int fd, const std::string& path, std::uint64_t position,
                        std::span<std::byte> bytes);

// A file that is written from its beginning to its end. Large page-aligned buffers are written with
// O_DIRECT where the file system supports it: nothing is copied, and the page cache keeps its
// contents. Errors are Error(kSystem) or DiskFull. They name the file, the bytes that it needs and
// how many were written; the caller must remove the unfinished file. Requires: nothing exists at
// `path`.
class PlainFileWriter {
 public:
  PlainFileWriter(FileSystem& files, const std::string& path, std::uint64_t size);
  ~PlainFileWriter();
  PlainFileWriter(const PlainFileWriter&) = delete;
  PlainFileWriter& operator=(const PlainFileWriter&) = delete;

  void write(std::span<const std::byte> bytes);
  // The whole file is on the disk when this returns. Without this call the destructor closes the
  // file without a sync.
  void finish();

 private:
  [[noreturn]] void give_up(const char* what) const;
  std::size_t prepare(std::span<const std::byte> bytes);

  FileSystem& files_;
  const std::string path_;
  const std::uint64_t size_;
  std::uint64_t written_ = 0;
  bool can_pass_ = true;  // writes may bypass the cache
  bool passes_ = false;   // writes now bypass it
  int fd_ = -1;
};

// Creates `path`, writes the parts one after another and syncs the file. The errors and the
// caller's duties are those of PlainFileWriter. Requires: nothing exists at `path`.
void write_plain_file(FileSystem& files, const std::string& path,
                      std::span<const std::span<const std::byte>> parts);

// Makes the entries of a directory durable.
void sync_directory(FileSystem& files, const std::string& path);

// Functions for a whole folder.

// The names in a folder. Error(kSystem) when the folder cannot be listed, or when a component of
// its path is a symbolic link.
std::vector<std::string> names_in(const std::string& folder);

// Removes a path and everything below it. A symbolic link is removed, but never the target of the
// link, even if the link replaces a folder meanwhile. Returns false, and sets errno, when something
// is left. A path that does not exist counts as removed.
bool remove_tree(FileSystem& files, const std::string& path);

}  // namespace paceline
