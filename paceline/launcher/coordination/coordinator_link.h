#pragma once

// An agent's way to the coordinator of its job in another process.
//
// Silence is what the coordinator did, not what TCP did: after a gap in the network TCP sends again
// only when as much time has passed once more. So an agent that hears nothing for a while also
// calls the coordinator over new connections, and each end takes those for signs of life.
//
// Thread safety: none.

#include <memory>
#include <string>
#include <vector>

#include "paceline/engine/core/secret.h"
#include "paceline/engine/core/socket.h"
#include "paceline/launcher/coordination/job_control.h"
#include "paceline/launcher/messages/agent_call.h"
#include "paceline/launcher/messages/agent_link.h"
#include "paceline/launcher/messages/keep_alive.h"
#include "paceline/launcher/process/event_loop.h"

namespace paceline::launcher {

class CoordinatorLink final : public JobControl {
 public:
  // `secret` must outlive it. Connects by the deadline, and proves the secret, which may take 3 s
  // more. Error(kTimeout) when no agent answers, Error(kInvalid) when the address does not resolve
  // or the other end has another secret, Error(kPeerLost) when it hung up meanwhile.
  CoordinatorLink(EventLoop& loop, const Endpoint& endpoint, const Secret& secret,
                  const KeepAlive& keep_alive, Deadline deadline);
  ~CoordinatorLink() override;

  void report(const Report& report) override;
  std::vector<Order> take_orders() override { return std::exchange(orders_, {}); }
  void tend() override;
  Deadline next_deadline() const override;
  std::string lost() const override { return lost_; }
  bool flushed() const override { return !lost_.empty() || !link_->has_output(); }

  // This host's address on the way there: where others reach it.
  const std::string& local_address() const { return local_address_; }
  // The coordinator's address and port, numeric.
  const Endpoint& peer() const { return peer_; }

 private:
  template <class Action>
  void guard(Action action);
  void serve();
  void call_if_silent();

  EventLoop& loop_;
  const Endpoint endpoint_;
  const Secret& secret_;
  const KeepAlive keep_alive_;
  std::unique_ptr<AgentLink> link_;
  Endpoint peer_;      // the coordinator's, numeric
  Endpoint stand_in_;  // this agent's, once it has joined
  std::vector<std::unique_ptr<AgentCall>> calls_;
  std::string local_address_;
  bool wants_room_ = false;
  Deadline::Clock::time_point next_sign_ = Deadline::Clock::now();
  std::vector<Order> orders_;
  std::string lost_;
};

}  // namespace paceline::launcher
