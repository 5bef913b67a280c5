#include "paceline/training/parallel/pass_counter.h"

#include <utility>

namespace paceline {

void PassCounter::begin_forward(std::int64_t samples, bool trains) {
  if (!trains) {
    begin_.reset();
    return;
  }
  if (!begin_) begin_ = Clock::now();
  samples_ += samples;
}

bool PassCounter::begins_step(std::uint64_t version) {
  const auto before = std::exchange(version_, version);
  if (!before) return true;
  saw_change_ = saw_change_ || version != *before;
  return version != *before || (!saw_change_ && ++num_unchanged_ >= kPatience);
}

void PassCounter::end_backward(double waited, std::uint64_t version) {
  waited_ += waited;
  if (!begins_step(version)) return;
  const auto now = Clock::now();
  if (!log_ || !log_->counts()) {
    log_.emplace();  // a loop's own log may have ended since
    log_->model(parameter_bytes_);
  }
  log_->step(samples_, std::chrono::duration<double>(now - begin_.value_or(now)).count(),
             std::exchange(waited_, 0.0));
  begin_ = now;
  samples_ = 0;
}

}  // namespace paceline
