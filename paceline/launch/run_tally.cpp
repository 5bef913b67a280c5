#include "paceline/launch/run_tally.h"

#include <fmt/format.h>

namespace paceline::launch {

void RunTally::started(double seconds) {
  if (num_generations_++ == 0) {
    begin_ = seconds;
  } else {
    idle_ += seconds - end_;
  }
  end_ = seconds;
}

void RunTally::ended(double seconds, const std::optional<StepReading>& steps) {
  end_ = seconds;
  if (!steps || steps->steps == 0) return;
  if (!steps_) steps_ = Steps{.first = steps->begun_at};
  steps_->made += steps->steps;
  steps_->seconds += steps->seconds;
  steps_->placed = steps_->placed && steps->begun_at;
  steps_->last = steps->begun_at.value_or(0) + steps->steps;
}

std::optional<std::uint64_t> RunTally::steps_lost() const {
  if (!steps_ || !steps_->placed) return {};
  const std::uint64_t kept = steps_->last > *steps_->first ? steps_->last - *steps_->first : 0;
  return steps_->made > kept ? steps_->made - kept : 0;
}

std::optional<double> RunTally::goodput() const {
  const auto lost = steps_lost();
  if (!lost || total() <= 0) return {};
  const auto made = static_cast<double>(steps_->made);
  return steps_->seconds * (made - static_cast<double>(*lost)) / made / total();
}

std::string RunTally::text() const {
  std::string text = fmt::format(
      "  time                  {:.1f} s, without ranks {:.1f} s of it\n"
      "  generations           {}\n",
      total(), idle_, num_generations_);
  const auto lost = steps_lost();
  if (lost) {
    text += fmt::format(
        "  steps                 {}, {} of them lost and made again\n"
        "  goodput               {:.1f}% (time in steps that were kept)\n",
        steps_->made, *lost, 100 * goodput().value_or(0));
  } else if (steps_) {
    text += fmt::format("  steps                 {}, with those made again\n", steps_->made);
  }
  return text;
}

}  // namespace paceline::launch
