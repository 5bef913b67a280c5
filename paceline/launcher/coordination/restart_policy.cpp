#include "paceline/launcher/coordination/restart_policy.h"

#include <algorithm>

#include <fmt/format.h>

#include "paceline/engine/core/error.h"

namespace paceline::launcher {
namespace {

using namespace std::chrono_literals;

constexpr std::chrono::nanoseconds kYoung = 1s;
constexpr std::chrono::nanoseconds kFirstPause = 100ms, kLongestPause = 5s;

std::string within(std::chrono::nanoseconds window) {
  if (window == 0ns) return "";
  return fmt::format(" within {:g} s", std::chrono::duration<double>(window).count());
}

}  // namespace

void RestartPolicy::note_progress() { num_alike_ = num_young_ = 0; }

RestartDecision RestartPolicy::after(const GenerationEnd& end, Moment now) {
  if (end.progressed) {
    note_progress();
  } else if (!end.failure.blameless()) {
    num_alike_ = end.failure.end == last_cause_ ? num_alike_ + 1 : 1;
    last_cause_ = end.failure.end;
  }
  if (limits_.max_restarts == 0) return {};
  if (end.failure.exit_code == kStateDamaged && !limits_.after_damage)
    return {.reason = "a rank's state was damaged (--on-damage stop)"};
  if (end.failure.exit_code == kExitUsage && !end.failure.blameless() && !end.progressed) {
    return {.reason = fmt::format(
                "an error of use (exit code {}) before any progress; restarting does not help",
                kExitUsage)};
  }
  if (!end.failure.blameless() && num_alike_ >= kCrashLoop) {
    return {.reason = fmt::format(
                "crash loop: the ranks {}{}{}, {} times in a row before any progress; "
                "restarting does not help",
                end.failure.end.starts_with("killed") ? "were " : "ended with ", end.failure.end,
                end.failure.reason.empty() ? "" : fmt::format(" ({})", end.failure.reason),
                num_alike_)};
  }
  const bool forget = limits_.window != 0ns;
  while (forget && !restarts_.empty() && now - restarts_.front() >= limits_.window) {
    restarts_.pop_front();
  }
  if (static_cast<int>(restarts_.size()) >= limits_.max_restarts) {
    return {.reason = fmt::format("{} restart{} used up{} (--max-restarts {})", restarts_.size(),
                                  restarts_.size() == 1 ? "" : "s", within(limits_.window),
                                  limits_.max_restarts)};
  }
  restarts_.push_back(now);
  ++num_restarts_;
  return {.restart = true, .pause = pause_after(end)};
}

std::chrono::nanoseconds RestartPolicy::pause_after(const GenerationEnd& end) {
  if (end.failure.blameless() || end.progressed) return 0ns;
  if (end.lived >= kYoung) {
    num_young_ = 0;
    return 0ns;
  }
  const int doublings = num_young_++ - 1;
  if (doublings < 0) return 0ns;
  return std::min(kLongestPause, kFirstPause * (1 << std::min(doublings, 10)));
}

}  // namespace paceline::launcher
