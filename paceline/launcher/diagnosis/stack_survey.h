#pragma once

// Where several ranks are: their stacks, a few helpers at a time, and one text in which equal
// stacks stand once.

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "paceline/launcher/diagnosis/stack_reader.h"

namespace paceline::launcher {

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
