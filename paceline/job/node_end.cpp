#include "paceline/job/node_end.h"

#include <csignal>

#include "paceline/core/exit_code.h"

namespace paceline::launch {

NodeEnd::Manner NodeEnd::manner() const {
  // Also when that was asked for at another node.
  if (ranks_agreed && (!order || order->cause.empty())) return Manner::kAgreed;
  if (stop_signal != 0 && !culprit) return Manner::kStopped;
  return order && order->exit_code == 0 ? Manner::kDone : Manner::kFailed;
}

int NodeEnd::exit_code() const {
  if (manner() == Manner::kAgreed) return kStoppedAsAgreed;
  if (order && stop_signal == 0) return order->exit_code;
  if (culprit) return culprit->status();
  if (stop_signal != 0) return 128 + stop_signal;
  return is_abandoned ? 128 + SIGKILL : 0;
}

}  // namespace paceline::launch
