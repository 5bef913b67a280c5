#pragma once

// Adds the frames of Python's functions to the stacks of a process that runs Python. The program
// py-spy (from PyPI) reads these frames from outside; it is looked for beside the interpreter that
// PACELINE_PYTHON names, and in PATH.

#include <string>
#include <vector>

#include <sys/types.h>

#include "apps/jobs/process_stacks.h"

namespace paceline::apps {

// Whether the process's program is Python's interpreter, or has loaded it as a library. False if
// the process has ended.
bool runs_python(pid_t pid);

// In the stack of every thread that runs Python, replaces the interpreter's frames and those of its
// callers with the functions of the program: "train (train.py:12)". Returns "", or why no Python
// function is shown, and what to do; the stacks are then unchanged. Waits at most 5 seconds.
//
// Requires: called from the main thread, because a process is started (launcher/process).
std::string add_python_frames(pid_t pid, std::vector<ThreadStack>& stacks);

// Adds the frames in `dump`, the output of `py-spy dump --json`. Returns false if there were none.
bool add_frames_of_dump(const std::string& dump, std::vector<ThreadStack>& stacks);

}  // namespace paceline::apps
