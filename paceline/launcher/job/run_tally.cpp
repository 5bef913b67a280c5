#include "paceline/launcher/job/run_tally.h"

#include <fmt/format.h>

#include "paceline/launcher/messages/agent_messages.h"

namespace paceline::launcher {

void RunTally::started(double seconds) {
  if (num_generations_++ == 0) {
    begin_ = seconds;
  } else {
    idle_ += seconds - end_;
  }
  generation_begin_ = end_ = seconds;
}

void RunTally::ended(double seconds, const std::optional<StepReading>& steps) {
  end_ = seconds;
  last_made_steps_ = steps && steps->steps > 0;
  if (!last_made_steps_) return;
  const bool first = !steps_;
  if (first) steps_ = Steps{.first = steps->begun_at, .last_ended = begin_};
  add_times(*steps);
  steps_->made += steps->steps;
  steps_->seconds += steps->seconds;
  steps_->placed = steps_->placed && steps->begun_at;
  steps_->last = steps->begun_at.value_or(0) + steps->steps;
}

// The time from the start of a generation to the first step of the job is the job's own time. The
// time of earlier generations, which made no step, counts as recovering.
void RunTally::add_times(const StepReading& steps) {
  const double first = steps.first_began.value_or(0), last = steps.last_ended.value_or(0);
  // Ignores times that were read in another time namespace.
  if (first < generation_begin_ || last - first < steps.seconds * 0.999 || last > end_) {
    steps_->timed = false;
    return;
  }
  const bool restarted = steps_->made > 0;
  recovering_ += restarted ? first - steps_->last_ended : generation_begin_ - begin_;
  steps_->last_ended = last;
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

std::optional<TimeSpent> RunTally::time_spent() const {
  const auto kept = goodput();
  if (!kept || !steps_->timed) return {};
  TimeSpent spent{.kept = *kept * total(), .recovering = recovering_};
  spent.made_again = steps_->seconds - spent.kept;
  if (!last_made_steps_) spent.recovering += end_ - steps_->last_ended;
  spent.own = total() - spent.kept - spent.made_again - spent.recovering;
  return spent;
}

std::string RunTally::steps_text() const {
  const auto lost = steps_lost();
  if (lost) {
    return fmt::format("  steps                 {}, {} of them lost and made again\n", steps_->made,
                       *lost);
  }
  if (!steps_) return "";
  return fmt::format("  steps                 {}, including steps made again\n", steps_->made);
}

std::string RunTally::text() const {
  std::string text = fmt::format("  generations           {}\n{}  time                  {:.1f} s\n",
                                 num_generations_, steps_text(), total());
  const auto line = [&](const char* name, double seconds, const std::string& more) {
    text += fmt::format("    {:<20}{:>6.1f}%  {:.1f} s{}\n", name, 100 * seconds / total(), seconds,
                        more);
  };
  const auto spent = time_spent();
  if (spent) {
    line("steps kept", spent->kept, "");
    line("lost to restarts", spent->lost(),
         fmt::format(": {:.1f} s of steps made again, {:.1f} s without a step", spent->made_again,
                     spent->recovering));
    line("the job's own", spent->own, ": its start, evaluating, saving");
    text += fmt::format(
        "  goodput               {:.1f}% of a run without restarts; {:.1f}% of the whole time\n",
        100 * spent->relative_goodput(), 100 * spent->goodput());
    return text;
  }
  line("without ranks", idle_, "");
  if (const auto kept = goodput()) {
    text += fmt::format("  goodput               {:.1f}% of the time, in steps that were kept\n",
                        100 * *kept);
  }
  return text;
}

NodeEnd::Manner NodeEnd::manner() const {
  // Does not require a stop_signal: the user may have sent the signal to another node.
  if (ranks_agreed && (!order || order->cause.empty())) return Manner::kAgreed;
  if (stop_signal != 0 && !culprit) return Manner::kStopped;
  return order && order->exit_code == 0 ? Manner::kDone : Manner::kFailed;
}

int NodeEnd::exit_code() const {
  JobEnd end{
      .agreed = manner() == Manner::kAgreed, .stop_signal = stop_signal, .abandoned = is_abandoned};
  if (order) end.decided = order->exit_code;
  if (culprit) end.failed = culprit->status();
  return end.exit_code();
}

}  // namespace paceline::launcher
