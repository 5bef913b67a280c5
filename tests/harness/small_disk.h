#pragma once

// A file system of a given size, for tests of full disks.

#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include <gtest/gtest.h>
#include <sys/mount.h>

namespace paceline::harness {

// The file system is mounted on a folder while the object exists. Requires: the user is root.
class SmallDisk {
 public:
  // `size`: as in mount(8), such as "64k".
  SmallDisk(std::string folder, const std::string& size) : folder_(std::move(folder)) {
    mount_with(0, size);
  }
  ~SmallDisk() { ::umount2(folder_.c_str(), MNT_DETACH); }
  SmallDisk(const SmallDisk&) = delete;
  SmallDisk& operator=(const SmallDisk&) = delete;
  void resize(const std::string& size) { mount_with(MS_REMOUNT, size); }

 private:
  void mount_with(unsigned long flags, const std::string& size) {
    const bool is_mounted =
        ::mount("tmpfs", folder_.c_str(), "tmpfs", flags, ("size=" + size).c_str()) == 0;
    EXPECT_TRUE(is_mounted) << std::strerror(errno);
  }

  const std::string folder_;
};

}  // namespace paceline::harness
