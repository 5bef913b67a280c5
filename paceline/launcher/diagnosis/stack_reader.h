#pragma once

// Reads the stack of one process, or the stacks of several ranks, and formats them as text. A
// helper reads the stacks: the program paceline, started as `HELPER stacks --pid PID --json`. The
// helper is a separate process, so the launcher does not wait, and does not crash if the memory
// that is read is corrupt.
//
// The helper needs permission to trace the process. Ranks name the launcher to the kernel's Yama
// module (PR_SET_PTRACER), which also permits the launcher's descendants, such as the helper.

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <sys/types.h>

#include "paceline/engine/core/system/fd.h"
#include "paceline/launcher/process/event_loop.h"
#include "paceline/launcher/process/process.h"

namespace paceline::launcher {

struct ThreadFrames {
  pid_t thread = -1;
  std::string name;
  std::vector<std::string> frames;  // innermost first
};

struct ProcessStacks {
  std::vector<ThreadFrames> threads;
  std::string problem;  // why threads or frames are missing; empty if none are
};

// Reads the output of `paceline stacks --pid PID --json`. For any other text the result has a
// problem.
ProcessStacks parse_stacks(const std::string& json);

// The 32 innermost frames of a thread as numbered lines that begin with `indent`, and the number of
// the other frames.
std::string frames_text(const std::vector<std::string>& frames, const std::string& indent);

class StackReader {
 public:
  struct Target {
    pid_t pid = -1;
    std::vector<pid_t> threads;  // empty: all
    bool crashed = false;        // the process crashed, and waits inside its signal handler
  };
  using Handler = std::function<void(ProcessStacks)>;

  // `helper` is a path. If it is not an executable file, the result is a problem instead of stacks.
  // `held` is the descriptor on which the target waits until its stack has been read. `handler` is
  // called once, when the stacks have been read or the helper has failed; it may destroy the
  // reader.
  StackReader(EventLoop& loop, const std::string& helper, const Target& target, Fd held,
              Handler handler);
  StackReader(const StackReader&) = delete;
  StackReader& operator=(const StackReader&) = delete;
  // Kills the helper.
  ~StackReader();
  // The pid of the helper; -1 if it was not started.
  pid_t helper() const { return helper_.pid; }

 private:
  void read();

  EventLoop& loop_;
  Handler handler_;
  Process helper_;
  Fd output_;
  std::string text_;
};

using RankStacks = std::map<int, ProcessStacks>;

// "  ranks 0, 2, thread main:\n      #0 ...": threads with equal frames are shown once, in the
// order of ranks. The ranks whose stacks could not be read follow, with the problem.
std::string stacks_text(const RankStacks& stacks);

// Reads the stacks of several ranks, a few helpers at a time.
class StackSurvey {
 public:
  using Handler = std::function<void(const RankStacks&)>;

  // `helper`: as for StackReader. `handler` is called once, never from within the constructor; it
  // may destroy the survey. Error(kSystem) if no helper can be started. If the stack of a single
  // rank cannot be read, the result has a problem for that rank. Requires: `targets` is not empty.
  StackSurvey(EventLoop& loop, std::string helper, std::map<int, StackReader::Target> targets,
              Handler handler);
  StackSurvey(const StackSurvey&) = delete;
  StackSurvey& operator=(const StackSurvey&) = delete;
  // The pids of the helpers that may still run.
  std::vector<pid_t> helpers() const;

 private:
  void start_more();
  void take(int rank, ProcessStacks stacks);

  EventLoop& loop_;
  const std::string helper_;
  Handler handler_;
  std::map<int, StackReader::Target> waiting_;
  std::map<int, std::unique_ptr<StackReader>> reading_;
  RankStacks stacks_;
};

}  // namespace paceline::launcher
