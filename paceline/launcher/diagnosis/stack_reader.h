#pragma once

// Reads the stacks of processes by a helper, the command paceline run as `HELPER stacks --pid PID
// --json`: of one process, and of several ranks as one text. The helper is a process of its own, so
// the launcher does not wait, and does not crash when the memory that is read is corrupt.
//
// The helper needs the right to trace the process. Ranks name the launcher to Yama
// (PR_SET_PTRACER), which also allows its descendants, such as the helper.

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <sys/types.h>

#include "paceline/engine/core/system/fd.h"
#include "paceline/launcher/process/event_loop.h"

namespace paceline::launcher {

struct ThreadFrames {
  pid_t thread = -1;
  std::string name;
  std::vector<std::string> frames;  // innermost first
};

struct ProcessStacks {
  std::vector<ThreadFrames> threads;
  std::string problem;  // why there are none; empty when there are
};

// Reads the output of `paceline stacks --pid PID --json`; any other text is a problem.
ProcessStacks parse_stacks(const std::string& json);

// A thread's frames as numbered lines behind `indent`, without the outermost ones beyond 32.
std::string frames_text(const std::vector<std::string>& frames, const std::string& indent);

class StackReader {
 public:
  struct Target {
    pid_t pid = -1;
    std::vector<pid_t> threads;  // empty: all
    bool crashed = false;        // inside a signal's handler
  };
  using Handler = std::function<void(ProcessStacks)>;

  // `helper` is a path; a helper that cannot be started becomes the problem of the stacks. `held`
  // is the descriptor on which the process waits until its stack is read. `handler` is called once,
  // when all is read or the helper has failed; the reader may be destroyed in it.
  StackReader(EventLoop& loop, const std::string& helper, const Target& target, Fd held,
              Handler handler);
  StackReader(const StackReader&) = delete;
  StackReader& operator=(const StackReader&) = delete;
  // Ends the helper.
  ~StackReader();

 private:
  void read();

  EventLoop& loop_;
  Handler handler_;
  Fd helper_;  // a pidfd
  Fd output_;
  std::string text_;
};

using RankStacks = std::map<int, ProcessStacks>;

// "  ranks 0, 2, thread main:\n      #0 ...": threads with equal frames stand together, in the
// order of ranks; then the ranks that could not be looked at, and why.
std::string stacks_text(const RankStacks& stacks);

// Reads the stacks of several ranks, a few helpers at a time.
class StackSurvey {
 public:
  using Handler = std::function<void(const RankStacks&)>;

  // `helper` as for StackReader. `handler` is called once, never from within the constructor; the
  // survey may be destroyed in it. Error(kSystem) when no rank can be looked at; a single rank that
  // cannot has its problem among the stacks.
  StackSurvey(EventLoop& loop, std::string helper, std::map<int, StackReader::Target> targets,
              Handler handler);
  StackSurvey(const StackSurvey&) = delete;
  StackSurvey& operator=(const StackSurvey&) = delete;

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
