#include "paceline/launcher/job/node_end.h"

#include "paceline/launcher/messages/job_end.h"

namespace paceline::launcher {

NodeEnd::Manner NodeEnd::manner() const {
  // Also when that was asked for at another node.
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
