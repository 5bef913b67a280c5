#pragma once

// Reads where a process is by a helper, a program that is run as `HELPER stacks --pid PID --json`
// (the command paceline): a process of its own, so that the launcher does not wait, and does not
// end when the memory that is read is corrupt.
//
// The helper needs the right to trace the process. It is the launcher's descendant; ranks name the
// launcher to Yama (PR_SET_PTRACER), which also allows its descendants.

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

// What `paceline stacks --pid PID --json` prints; anything else is a problem.
ProcessStacks parse_stacks(const std::string& json);

// A thread's frames, numbered lines behind `indent`, the outermost left out beyond 32.
std::string frames_text(const std::vector<std::string>& frames, const std::string& indent);

class StackReader {
 public:
  struct Target {
    pid_t pid = -1;
    std::vector<pid_t> threads;  // empty: all
    bool crashed = false;        // inside a signal's handler
  };
  using Handler = std::function<void(ProcessStacks)>;

  // `helper` is a path; without one that there is a problem. `held` is closed once the process runs
  // on. `handler` is called once, when all is read or the helper has ended without; the reader may
  // be destroyed in it.
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

// Where several ranks are: their stacks, a few helpers at a time, and one text in which equal
// stacks stand once.

using RankStacks = std::map<int, ProcessStacks>;

// "  ranks 0, 2, thread main:\n      #0 ...": threads with equal frames stand together, in the
// order of ranks; then who could not be looked at, and why.
std::string stacks_text(const RankStacks& stacks);

class StackSurvey {
 public:
  using Handler = std::function<void(const RankStacks&)>;

  // `helper` is StackReader's. `handler` is called once, never from within the constructor; the
  // survey may be destroyed in it. Error(kSystem) when no rank can be looked at; one that cannot
  // has its problem among the stacks.
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
