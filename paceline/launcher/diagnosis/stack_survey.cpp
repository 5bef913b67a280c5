#include "paceline/launcher/diagnosis/stack_survey.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "paceline/engine/core/error.h"
#include "paceline/launcher/diagnosis/failure_report.h"

namespace paceline::launcher {
namespace {

constexpr std::size_t kAtOnce = 4;

std::string ranks_named(const std::vector<int>& ranks) {
  return fmt::format("rank{} {}", ranks.size() == 1 ? "" : "s", format_ranks(ranks));
}

// Threads with the same frames: which ranks have how many under which name.
struct Group {
  std::vector<std::string> frames;
  std::map<std::string, std::map<int, int>> threads;  // by name, by rank: how many
};

std::vector<Group> group_equal(const RankStacks& stacks) {
  std::vector<Group> groups;
  for (const auto& [rank, process] : stacks) {
    for (const ThreadFrames& thread : process.threads) {
      auto group = std::find_if(groups.begin(), groups.end(),
                                [&](const Group& other) { return other.frames == thread.frames; });
      if (group == groups.end()) group = groups.insert(group, Group{thread.frames, {}});
      ++group->threads[thread.name][rank];
    }
  }
  return groups;
}

std::string heading(const Group& group) {
  std::string text;
  for (const auto& [name, counts] : group.threads) {
    std::vector<int> ranks;
    int most = 0;
    for (const auto& [rank, count] : counts) {
      ranks.push_back(rank);
      most = std::max(most, count);
    }
    text += fmt::format("{}{}, {} {}", text.empty() ? "" : "; ", ranks_named(ranks),
                        most == 1 ? "thread" : fmt::format("{} threads", most), name);
  }
  return text;
}

}  // namespace

std::string stacks_text(const RankStacks& stacks) {
  std::string text;
  for (const Group& group : group_equal(stacks)) {
    text += fmt::format(
        "  {}:\n{}", heading(group),
        group.frames.empty() ? "      (no frames)\n" : frames_text(group.frames, "      "));
  }
  std::map<std::string, std::vector<int>> problems;
  for (const auto& [rank, process] : stacks) {
    if (!process.problem.empty()) problems[process.problem].push_back(rank);
  }
  for (const auto& [problem, ranks] : problems) {
    text += fmt::format("  {}: {}\n", ranks_named(ranks), problem);
  }
  return text;
}

StackSurvey::StackSurvey(EventLoop& loop, std::string helper,
                         std::map<int, StackReader::Target> targets, Handler handler)
    : loop_(loop),
      helper_(std::move(helper)),
      handler_(std::move(handler)),
      waiting_(std::move(targets)) {
  start_more();
  if (reading_.empty() && !stacks_.empty()) {
    throw Error(ErrorCode::kSystem, stacks_.begin()->second.problem);
  }
}

// Also called from within the loop, which must not end because of a rank that cannot be looked at.
void StackSurvey::start_more() {
  while (!waiting_.empty() && reading_.size() < kAtOnce) {
    const auto [rank, target] = *waiting_.begin();
    waiting_.erase(waiting_.begin());
    try {
      auto reader = std::make_unique<StackReader>(
          loop_, helper_, target, Fd(),
          [this, rank = rank](ProcessStacks stacks) { take(rank, std::move(stacks)); });
      reading_.emplace(rank, std::move(reader));
    } catch (const Error& error) {
      stacks_[rank].problem = fmt::format("its stack could not be read: {}", error.what());
    }
  }
}

void StackSurvey::take(int rank, ProcessStacks stacks) {
  stacks_[rank] = std::move(stacks);
  reading_.erase(rank);
  start_more();
  if (!reading_.empty()) return;
  const Handler handler = std::move(handler_);  // it may destroy this
  const RankStacks all = std::move(stacks_);
  handler(all);
}

}  // namespace paceline::launcher
