#pragma once

// Reads the call stacks of another process's threads, with the names of functions and, if there is
// debug information, lines. They are read from outside with ptrace(2) and elfutils' libdw, so the
// process itself need not work any more: its heap may be corrupt, and its locks may be held. Users
// do not need root for their own processes.
//
// The threads are stopped while their return addresses are collected (milliseconds; a blocking
// system call may return EINTR). The names are looked up after the threads have been released.
//
// libdw is linked only to the command, never to a training program.

#include <functional>
#include <string>
#include <vector>

#include <sys/types.h>

namespace paceline::apps {

struct ThreadStack {
  pid_t thread = -1;
  std::string name;                 // as in /proc/PID/task/TID/comm
  std::vector<std::string> frames;  // "all_reduce (engine_group.cpp:88)", innermost first
};

struct StackQuestion {
  pid_t pid = -1;
  std::vector<pid_t> threads;  // empty: all
  // Whether the threads are inside a signal handler. If so, their frames begin where the signal
  // interrupted them; for an abort, the frames of the C and C++ libraries that led to it are left
  // out as well.
  bool crashed = false;
};

// `released` is called when the threads run again. Error(kSystem) with the reason if the process
// has ended or may not be inspected.
std::vector<ThreadStack> read_stacks(const StackQuestion& question,
                                     const std::function<void()>& released = {});

}  // namespace paceline::apps
