#include "paceline/launcher/messages/clock_comparison.h"

#include <algorithm>

namespace paceline::launcher {
namespace {

using std::chrono::nanoseconds;

constexpr nanoseconds kLatest{std::int64_t{1} << 60};

}  // namespace

bool is_plausible_reading(nanoseconds reading) {
  return reading >= nanoseconds(0) && reading < kLatest;
}

nanoseconds clock_reading(Deadline::Clock::time_point moment) {
  return std::chrono::duration_cast<nanoseconds>(moment.time_since_epoch());
}

void ClockComparison::take(const ClockExchange& exchange) {
  const auto& [asked, heard, answered, returned] = exchange;
  for (const nanoseconds reading : {asked, heard, answered, returned}) {
    if (!is_plausible_reading(reading)) return;
  }
  const nanoseconds there_and_back = (returned - asked) - (answered - heard);
  if (returned < asked || answered < heard || there_and_back < nanoseconds(0)) return;
  const nanoseconds offset = ((asked - heard) + (returned - answered)) / 2;
  const nanoseconds error = (there_and_back + nanoseconds(1)) / 2;
  newest_.push_back({offset, error});
  if (newest_.size() > kNewest) newest_.pop_front();
  lowest_top_ = std::min(lowest_top_, offset + error);
  highest_bottom_ = std::max(highest_bottom_, offset - error);
}

const ClockComparison::Estimate& ClockComparison::best() const {
  return *std::min_element(newest_.begin(), newest_.end(),
                           [](const auto& a, const auto& b) { return a.error < b.error; });
}

nanoseconds ClockComparison::drift() const {
  return std::max(nanoseconds(0), highest_bottom_ - lowest_top_);
}

nanoseconds ClockComparison::longest_round_trip() const {
  nanoseconds longest{};
  for (const Estimate& one : newest_) longest = std::max(longest, 2 * one.error);
  return longest;
}

}  // namespace paceline::launcher
