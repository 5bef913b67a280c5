#pragma once

// Orders on their way from whoever decides for a job (launcher/coordination/coordinator.h,
// launcher/diagnosis/hang_inquiry.h, launcher/diagnosis/straggler_inquiry.h) to its agents.
//
// Thread safety: none.

#include <utility>
#include <vector>

#include "paceline/launcher/messages/agent_messages.h"

namespace paceline::launcher {

struct Mail {
  int to = -1;  // an agent
  Order order;
};

class Outbox {
 public:
  // In place: GCC 12 takes the move of a whole Order for one of uninitialised bytes.
  template <class One>
  void send(int to, One order) {
    Mail& mail = mail_.emplace_back();
    mail.to = to;
    mail.order.emplace<One>(std::move(order));
  }
  // Orders since the last call.
  std::vector<Mail> take() { return std::exchange(mail_, {}); }
  void clear() { mail_.clear(); }

 private:
  std::vector<Mail> mail_;
};

}  // namespace paceline::launcher
