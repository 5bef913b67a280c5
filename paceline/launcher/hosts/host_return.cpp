#include "paceline/launcher/hosts/host_return.h"

#include <algorithm>

namespace paceline::launcher {

bool HostReturn::plan(Moment now) {
  if (back_since_ && now - *back_since_ >= kLongLife) {
    tries_left_ = most_tries_;
    pause_ = kFirstPause;
  }
  back_since_.reset();
  next_.reset();
  if (tries_left_ == 0) return false;
  --tries_left_;
  next_ = now + pause_;
  pause_ = std::min(2 * pause_, kLongestPause);
  return true;
}

void HostReturn::give_up() {
  tries_left_ = 0;
  next_.reset();
}

void HostReturn::back(Moment now) {
  back_since_ = now;
  next_.reset();
}

}  // namespace paceline::launcher
