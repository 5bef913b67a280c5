#include "paceline/launcher/coordination/restart_policy.h"

#include <algorithm>

#include <fmt/format.h>

#include "paceline/engine/core/check.h"
#include "paceline/engine/core/error.h"
#include "paceline/engine/core/error_text.h"

namespace paceline::launcher {
namespace {

using namespace std::chrono_literals;

constexpr std::chrono::nanoseconds kYoung = 1s;
constexpr std::chrono::nanoseconds kFirstPause = 100ms, kLongestPause = 5s;

}  // namespace

std::string used_up_text(const RestartBudget& budget) {
  const auto seconds = std::chrono::duration<double>(budget.window).count();
  return fmt::format("{} used up{} (--max-restarts {})", counted(budget.num_used(), "restart"),
                     budget.has_window() ? fmt::format(" within {:g} s", seconds) : "",
                     budget.max_restarts);
}

RestartDecision RestartPolicy::after(const GenerationEnd& end, Moment now) {
  if (end.progressed) {
    note_progress();
  } else if (!end.failure.blameless()) {
    budget_.num_alike = end.failure.end == budget_.last_end ? budget_.num_alike + 1 : 1;
    budget_.last_end = end.failure.end;
  }
  if (budget_.max_restarts == 0) return {};
  if (end.failure.exit_code == kStateDamaged && !budget_.after_damage)
    return {.reason = "a rank's state was damaged (--on-damage stop)"};
  if (end.failure.exit_code == kExitUsage && !end.failure.blameless() && !end.progressed) {
    return {.reason = fmt::format(
                "a usage error (exit code {}) before any progress; restarting does not help",
                kExitUsage)};
  }
  if (!end.failure.blameless() && budget_.num_alike >= kCrashLoop) {
    return {.reason = fmt::format(
                "crash loop: the ranks {}{}{}, {} times in a row before any progress; "
                "restarting does not help",
                end.failure.end.starts_with("killed") ? "were " : "ended with ", end.failure.end,
                end.failure.reason.empty() ? "" : fmt::format(" ({})", end.failure.reason),
                budget_.num_alike)};
  }
  if (const RestartBudget left = budget(now); left.is_used_up()) {
    return {.reason = used_up_text(left)};
  }
  count_restart(now);
  return {.restart = true, .pause = pause_after(end)};
}

void RestartPolicy::count_restart(Moment now) {
  budget_ = budget(now);
  as_of_ = now;
  ++budget_.num_restarts;
  if (budget_.has_window()) budget_.ages.emplace_back(0);
}

std::chrono::nanoseconds RestartPolicy::pause_after(const GenerationEnd& end) {
  if (end.failure.blameless() || end.progressed) return 0ns;
  if (end.lived >= kYoung) {
    budget_.num_young = 0;
    return 0ns;
  }
  const int doublings = budget_.num_young++ - 1;
  if (doublings < 0) return 0ns;
  return std::min(kLongestPause, kFirstPause * (1 << std::min(doublings, 10)));
}

}  // namespace paceline::launcher
