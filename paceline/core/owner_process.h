#pragma once

// Which process made an object. A child made by fork() has a copy of the object but none of its
// threads, and must not speak for its parent over descriptors that both hold.

#include <unistd.h>

namespace paceline {

class OwnerProcess {
 public:
  bool is_this() const { return getpid() == pid_; }

 private:
  pid_t pid_ = getpid();
};

}  // namespace paceline
