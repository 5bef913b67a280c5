#pragma once

// Who keeps the others waiting in a job on several hosts. Every agent reports now and then how much
// of the time each of its ranks spent inside operations, that is working together or waiting for
// the others. The rank that the others wait for waits for none itself, so its share is the lowest
// by far: at least a tenth of the time below the next one, and at most half of it, four reports in
// a row. Shares need no common clock.
//
// The job's coordinator holds it, as the inquiry of a hang (hang_inquiry.h).
//
// Thread safety: none. Pure.

#include <map>
#include <set>
#include <vector>

#include "paceline/launcher/messages/agent_messages.h"
#include "paceline/launcher/messages/outbox.h"

namespace paceline::launcher {

class StragglerInquiry {
 public:
  using Agent = int;

  // The agents of a generation that begins. Forgets all others.
  void begin(int generation, std::set<Agent> agents);
  void take(Agent from, const Shares& report);
  void lose(Agent agent);
  // Orders since the last call, each to the agent of the rank that it names.
  std::vector<Mail> take_mail() { return outbox_.take(); }

 private:
  static constexpr int kTimes = 4;
  void judge();

  int generation_ = 0;
  std::set<Agent> agents_;
  std::map<Agent, Shares> reports_;  // since the last judgement
  int rank_ = -1;                    // the straggler then; -1: none
  int times_ = 0;                    // how often in a row
  Outbox outbox_;
};

}  // namespace paceline::launcher
