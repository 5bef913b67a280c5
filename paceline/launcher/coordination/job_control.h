#pragma once

// The interface through which an agent reports to the coordinator of its job and receives orders.
// The coordinator runs in this process (CoordinatorHost) or in the process of another node's agent
// (CoordinatorLink).
//
// Thread safety: none.

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "paceline/engine/core/authentication.h"
#include "paceline/engine/core/deadline.h"
#include "paceline/engine/core/system/fd.h"
#include "paceline/engine/core/system/socket.h"
#include "paceline/launcher/coordination/coordinator.h"
#include "paceline/launcher/messages/agent_link.h"
#include "paceline/launcher/messages/agent_messages.h"
#include "paceline/launcher/messages/keep_alive.h"
#include "paceline/launcher/process/event_loop.h"

namespace paceline::launcher {

class JobControl {
 public:
  virtual ~JobControl() = default;

  virtual void report(const Report& report) = 0;
  // Returns the orders that have arrived since the last call.
  virtual std::vector<Order> take_orders() = 0;
  // Call this after each iteration of the loop, and when next_deadline() has passed.
  virtual void tend() = 0;
  virtual Deadline next_deadline() const = 0;
  // Why the coordinator is lost; empty while it is not lost.
  virtual std::string lost() const = 0;
  // Whether all messages that were sent have left this process.
  virtual bool flushed() const = 0;
};

// The connection to a coordinator in another process.
//
// After a network outage, TCP may stay silent for as long again as the outage lasted, before it
// retransmits. That silence must not be mistaken for the loss of the coordinator. So an agent that
// has heard nothing for a while also calls the coordinator over new connections, and the agent and
// the coordinator accept these calls as signs of life.
//
// Thread safety: none.
class CoordinatorLink final : public JobControl {
 public:
  // `secret` must outlive the link. Connects by the deadline, and proves the secret, which may take
  // 3 s more. Error(kTimeout) when no agent answers, Error(kInvalid) when the address does not
  // resolve or the other end has another secret, Error(kPeerLost) when the other end closes the
  // connection meanwhile, Error(kSystem) for other causes.
  CoordinatorLink(EventLoop& loop, const Endpoint& endpoint, const Secret& secret,
                  const KeepAlive& keep_alive, Deadline deadline);
  ~CoordinatorLink() override;

  void report(const Report& report) override;
  std::vector<Order> take_orders() override { return std::exchange(orders_, {}); }
  void tend() override;
  Deadline next_deadline() const override;
  std::string lost() const override { return lost_; }
  bool flushed() const override { return !lost_.empty() || !link_->has_output(); }

  // This host's address on the route to the coordinator, at which other hosts can reach this host.
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
  Endpoint peer_;      // the coordinator's address and port, numeric
  Endpoint stand_in_;  // where this agent may lead the job; set once it has joined
  std::vector<std::unique_ptr<AgentCall>> calls_;
  std::string local_address_;
  bool wants_room_ = false;
  Deadline::Clock::time_point next_sign_ = Deadline::Clock::now();
  std::vector<Order> orders_;
  std::string lost_;
};

// The coordinator in this process, with the connections of the agents that report to it. Agents of
// other nodes connect through sockets; this process's own agent calls the coordinator directly. A
// job on one node has no sockets.
//
//   1. A stranger is a connection that has not proved the secret; it has 3 s to do so. There are at
//      most 256 strangers, and at most one for every four descriptors that the process may open. At
//      that limit, or when no descriptor is left, a new connection replaces the oldest stranger, so
//      strangers never keep an agent out. They cause at most one log line per second.
//   2. An agent is lost when its connection breaks, which the kernel reports at once when the
//      process dies. An agent is also lost when it gives no sign of life, for example because its
//      host has crashed (launcher/messages/keep_alive.h).
//   3. The clocks of the agents are compared with this process's clock from time to time, so that
//      the moments of failures on different hosts can be compared.
//   4. This coordinator itself is lost (lost()) when so many agents have given up on it that they
//      can run the job on their own, for example because its process was frozen. The job then
//      continues under another coordinator, and this one gives no more orders.
//
// Thread safety: none.
class CoordinatorHost final : public JobControl {
 public:
  // For a job on one node, which needs no listener.
  CoordinatorHost(EventLoop& loop, const CoordinatorSettings& settings);
  // For a job on several nodes. `listener` is made non-blocking.
  CoordinatorHost(EventLoop& loop, const CoordinatorSettings& settings, Fd listener,
                  const Secret& secret, const KeepAlive& keep_alive);
  ~CoordinatorHost() override;

  void report(const Report& report) override;
  std::vector<Order> take_orders() override;
  void tend() override;
  Deadline next_deadline() const override;
  std::string lost() const override { return lost_; }
  bool flushed() const override;

 private:
  using Agent = Coordinator::Agent;
  using Moment = Deadline::Clock::time_point;
  static constexpr Agent kOwn = 0;
  struct Remote {
    std::unique_ptr<AgentLink> link;
    bool wants_room = false;
    Endpoint stand_in;  // where the agent may lead the job; set once it has joined
  };

  void accept_some();
  void admit(Fd socket);
  bool drop_oldest_stranger(const std::string& cause);
  void pause_listener();
  void complain(const std::string& what);
  void serve(Agent agent);
  void deliver();
  void send(Agent agent, const std::string& text);
  template <class Action>
  void with_link(Agent agent, Action action);
  RankFailure on_own_clock(Agent agent, RankFailure report) const;
  KeepAlive patience() const;
  void watch_for_room(Remote& remote);
  void drop(Agent agent, const std::string& cause);
  void take(Agent agent, const Report& report);
  void hear(Agent agent, const Alive& alive);
  void check_signs_of_life();
  void ask_others();
  void take_answers();

  EventLoop& loop_;
  Coordinator coordinator_;
  std::vector<Order> own_orders_;
  Fd listener_;
  Moment resume_at_ = Moment::max();  // when to watch the listener again, if it is paused
  std::size_t max_strangers_ = 0;
  Moment last_complaint_{};
  int num_unsaid_ = 0;  // complaints since last_complaint_ that were not logged
  std::optional<Secret> secret_;
  KeepAlive keep_alive_;
  Moment next_signs_ = Moment::max();
  std::string lost_;
  Agent last_agent_ = kOwn;
  std::map<Agent, Remote> remotes_;
  std::vector<std::unique_ptr<AgentCall>> calls_;  // to agents that may lead the job
  std::size_t next_to_ask_ = 0;
};

}  // namespace paceline::launcher
