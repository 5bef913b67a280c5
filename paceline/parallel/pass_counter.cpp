#include "paceline/parallel/pass_counter.h"

namespace paceline {

void PassCounter::begin_forward(std::int64_t samples, bool trains) {
  if (!trains) {
    begin_.reset();
    return;
  }
  if (!begin_) begin_ = Clock::now();
  samples_ += samples;
}

void PassCounter::end_backward(double waited) {
  const auto now = Clock::now();
  if (!log_ || !log_->counts()) {
    log_.emplace();  // a loop's own log may have ended since
    log_->model(parameter_bytes_);
  }
  log_->step(samples_, std::chrono::duration<double>(now - begin_.value_or(now)).count(), waited);
  begin_ = now;
  samples_ = 0;
}

}  // namespace paceline
