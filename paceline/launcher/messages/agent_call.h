#pragma once

// One question to another agent of the job, over a connection of its own: connects, proves the
// secret, sends one report and takes one order. Nothing here waits; what fails is an answer that
// does not come.
//
// Thread safety: none. `loop` and `secret` must outlive it.

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "paceline/engine/core/deadline.h"
#include "paceline/engine/core/handshake.h"
#include "paceline/engine/core/secret.h"
#include "paceline/engine/core/socket.h"
#include "paceline/launcher/messages/agent_link.h"
#include "paceline/launcher/messages/agent_messages.h"
#include "paceline/launcher/process/event_loop.h"

namespace paceline::launcher {

class AgentCall {
 public:
  // `agent` should be numeric: a name is looked up, which may take as long as the resolver waits.
  AgentCall(EventLoop& loop, const Endpoint& agent, const Secret& secret, Report question,
            std::chrono::nanoseconds patience);
  AgentCall(const AgentCall&) = delete;
  AgentCall& operator=(const AgentCall&) = delete;
  ~AgentCall();

  const Endpoint& agent() const { return agent_; }
  // Whether nothing more happens: the call was answered, it failed, or its time is over.
  bool over() const { return ended_ || patience_.expired(); }
  // The answer, once; nothing while there is none.
  std::optional<Order> take_answer() { return std::exchange(answer_, std::nullopt); }

 private:
  void go_on();
  void go_on_connecting();
  void shake_hands();
  void read_answer();
  void watch(const Fd& socket, std::uint32_t events);
  void hang_up();

  EventLoop& loop_;
  const Endpoint agent_;
  const Secret& secret_;
  const Report question_;
  const Deadline patience_;
  int watched_ = -1;
  std::optional<ConnectAttempt> attempt_;
  Fd socket_;
  std::optional<ClientHandshake> handshake_;
  std::unique_ptr<AgentLink> link_;
  std::optional<Order> answer_;
  bool ended_ = false;
};

}  // namespace paceline::launcher
