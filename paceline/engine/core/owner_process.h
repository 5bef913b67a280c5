#pragma once

// Which process made an object. A child made by fork() has a copy of the object but none of its
// threads, and must not speak for its parent over descriptors that both hold.
//
// is_this() costs a load: the kernel wipes one page of every child, and a process that finds it
// wiped marks it as its own. (Linux before 4.14, which cannot, costs a system call each time.)
//
// Thread safety: const methods are safe.

#include <sys/types.h>

namespace paceline {

class OwnerProcess {
 public:
  OwnerProcess() : pid_(current()) {}
  bool is_this() const { return current() == pid_; }
  // For messages.
  pid_t pid() const { return pid_; }

 private:
  static pid_t current();

  pid_t pid_;
};

}  // namespace paceline
