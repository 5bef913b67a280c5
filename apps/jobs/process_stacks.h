#pragma once

// Where the threads of another process are: their call stacks with the names of functions and, with
// debug information, lines. Read from outside by ptrace(2) and elfutils' libdw, so that nothing in
// the process has to work any more: its heap may be corrupt, its locks held. No root is needed for
// one's own processes.
//
// The threads stand still while the return addresses are collected (milliseconds; a system call
// that waits may return EINTR); names are looked up after they run again.
//
// libdw is linked to the command alone, never to a training program.

#include <functional>
#include <string>
#include <vector>

#include <sys/types.h>

namespace paceline::apps {

struct ThreadStack {
  pid_t thread = -1;
  std::string name;                 // as in /proc/PID/task/TID/comm
  std::vector<std::string> frames;  // "all_reduce (process_group.cpp:88)", innermost first
};

struct StackQuestion {
  pid_t pid = -1;
  std::vector<pid_t> threads;  // empty: all
  // The threads are inside a signal's handler: their frames begin where the signal hit, and for an
  // abort behind the frames of the C and C++ libraries that led to it.
  bool crashed = false;
};

// `released` is called once the threads run again. Error(kSystem) with the reason when the process
// is gone or must not be looked at.
std::vector<ThreadStack> read_stacks(const StackQuestion& question,
                                     const std::function<void()>& released = {});

}  // namespace paceline::apps
