#pragma once

// When to try again to start a lost host's part of a job: after 1 s, 2 s, 4 s, ... up to a minute,
// so many times. A host that was back for ten minutes has all its tries again, so that one that
// comes and goes does not keep a job from its work. Pure: time is an argument.

#include <chrono>
#include <optional>

#include "paceline/engine/core/deadline.h"

namespace paceline::launcher {

class HostReturn {
 public:
  using Moment = Deadline::Clock::time_point;

  explicit HostReturn(int most_tries) : most_tries_(most_tries), tries_left_(most_tries) {}

  // It is lost, or could not be reached again. False when there is no try left.
  bool plan(Moment now);
  // It is not tried any more.
  void give_up();
  // Its part has begun again.
  void back(Moment now);

  // The next try; nothing when none is planned.
  std::optional<Moment> next() const { return next_; }
  bool due(Moment now) const { return next_ && *next_ <= now; }
  // Takes the try.
  void begin() { next_.reset(); }

 private:
  int most_tries_, tries_left_;
  std::chrono::seconds pause_ = kFirstPause;
  std::optional<Moment> next_;
  std::optional<Moment> back_since_;

  static constexpr std::chrono::seconds kFirstPause{1}, kLongestPause{60};
  static constexpr std::chrono::minutes kLongLife{10};
};

}  // namespace paceline::launcher
