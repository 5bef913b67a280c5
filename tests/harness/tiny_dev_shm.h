#pragma once

// A /dev/shm with almost no space, for tests.

#include <sched.h>
#include <sys/mount.h>

namespace paceline::harness {

// Mounts a /dev/shm of 64 KiB for this process and its children alone. Returns false if this user
// may not mount.
inline bool make_dev_shm_tiny() {
  if (::unshare(CLONE_NEWNS) != 0 && ::unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) return false;
  // In a chroot "/" is not a mount point. Then /dev/shm itself is made private, or the new mount
  // would be visible outside.
  const bool is_private = ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 ||
                          ::mount("none", "/dev/shm", nullptr, MS_PRIVATE, nullptr) == 0;
  return is_private && ::mount("tmpfs", "/dev/shm", "tmpfs", 0, "size=64k") == 0;
}

}  // namespace paceline::harness
