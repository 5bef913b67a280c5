#pragma once

// The coordinator with the connections of the agents that report to it: those of other nodes come
// over sockets, this process's own agent speaks to it directly. A job on one node has no sockets.
//
// Strangers, which have not proved the secret, get at most a quarter of the descriptors, 3 s, and a
// line of log a second between them; when none is left the oldest of them goes.
//
// An agent is lost when its connection breaks, which the kernel tells at once when the process
// dies, and when it gives no sign of life, as from a host that has vanished
// (launcher/messages/silence.h).
//
// The clocks of the agents are compared with this one's from time to time, so that it can be told
// whose rank failed first.
//
// The coordinator itself is lost (lost()) when enough agents for a job of their own gave it up, as
// happens to one that was frozen: the job goes on elsewhere by then. It orders nothing any more.
// One that has too few nodes asks others whether they lead the job (coordinator.h).
//
// Thread safety: none.

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "paceline/engine/core/fd.h"
#include "paceline/engine/core/secret.h"
#include "paceline/launcher/coordination/coordinator.h"
#include "paceline/launcher/coordination/job_control.h"
#include "paceline/launcher/messages/agent_call.h"
#include "paceline/launcher/messages/agent_link.h"
#include "paceline/launcher/messages/keep_alive.h"
#include "paceline/launcher/process/event_loop.h"

namespace paceline::launcher {

class CoordinatorHost final : public JobControl {
 public:
  // One node: without a listener.
  CoordinatorHost(EventLoop& loop, const CoordinatorSettings& settings);
  // Several: `listener` is made non-blocking.
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
    Endpoint stand_in;  // once the agent has joined
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
  void watch_for_room(Agent agent, Remote& remote);
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
  Moment resume_at_ = Moment::max();  // the listener, when it is paused
  std::size_t max_strangers_ = 0;
  Moment last_complaint_{};
  int num_unsaid_ = 0;  // complaints since then
  std::optional<Secret> secret_;
  KeepAlive keep_alive_;
  Moment next_signs_ = Moment::max();
  std::string lost_;
  Agent last_agent_ = kOwn;
  std::map<Agent, Remote> remotes_;
  std::vector<std::unique_ptr<AgentCall>> calls_;  // to others that may lead the job
  std::size_t next_to_ask_ = 0;
};

}  // namespace paceline::launcher
