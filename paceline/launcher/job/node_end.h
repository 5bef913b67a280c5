#pragma once

// How a job ended, as one of its nodes knows it. A value.

#include <optional>

#include "paceline/launcher/messages/agent_messages.h"
#include "paceline/launcher/process/rank_end.h"

namespace paceline::launcher {

struct NodeEnd {
  enum class Manner {
    kAgreed,   // all ranks stopped before their work was done, as they had agreed
    kStopped,  // by a signal to this launcher, before any rank of the node failed
    kDone,
    kFailed,
  };

  std::optional<EndOrder> order;  // the coordinator's
  int stop_signal = 0;            // the first that ended this launcher; 0: none
  bool is_abandoned = false;      // the supervisor is gone
  bool ranks_agreed = false;      // those of this node stopped as agreed
  std::optional<RankEnd> culprit;

  Manner manner() const;
  // Of the job: 0, the last culprit's, or 128 + N for signal N.
  int exit_code() const;
};

}  // namespace paceline::launcher
