#pragma once

// The membership of a node in its job: finds the coordinator, joins the job through it, and changes
// to another coordinator when the current one is lost.

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "paceline/engine/core/authentication.h"
#include "paceline/engine/core/awake_clock.h"
#include "paceline/engine/core/deadline.h"
#include "paceline/engine/core/system/socket.h"
#include "paceline/launcher/coordination/coordinator.h"
#include "paceline/launcher/coordination/job_control.h"
#include "paceline/launcher/messages/agent_messages.h"
#include "paceline/launcher/output/console.h"
#include "paceline/launcher/process/event_loop.h"
#include "paceline/launcher/ranks/job_services.h"
#include "paceline/launcher/ranks/launch_options.h"

namespace paceline::launcher {

// The order that started the last generation of this node's ranks, and when it arrived.
struct LastStart {
  StartOrder order;
  AwakeClock::time_point at = AwakeClock::now();

  // The budget of restarts, with the ages of the restarts as of now.
  RestartBudget restarts() const { return order.place.restarts.after(AwakeClock::now() - at); }
};

// Finds the coordinator of this agent's job, or makes this agent the coordinator.
//
// At first:
//   1. The agent of node 0 is the coordinator and listens at the job's endpoint. If no node ranks
//      are given, the coordinator is the first agent on the host of the endpoint. The other agents
//      connect to it.
// After a loss:
//   2. Every agent has listened at a stand-in endpoint since it joined, and all agents know the
//      stand-ins of all nodes from the order that started the last generation.
//   3. Each agent tries the coordinator that it lost, then the stand-ins in the order of node
//      ranks. An agent that reaches its own endpoint in this order becomes the coordinator. So all
//      agents that reach each other agree on the first live agent, without a vote.
//   4. The successor gives its first generation the number after the last generation's, so that no
//      message of the last generation affects the new one. It takes over the remaining budget of
//      restarts, which every agent knows from the StartOrder of the last generation.
//   5. An agent that was the coordinator, and on which the other agents gave up, looks for its
//      successor among them. It never becomes the successor itself, because it does not know what
//      they have done meanwhile.
//   6. Two parts of a network that cannot reach each other become two jobs only if each has at
//      least MIN nodes of --nnodes. A coordinator with fewer nodes asks the other agents whether
//      they belong to a larger part. If they do, it gives way to that part's coordinator
//      (coordination/coordinator.h), and its own agents follow.
//
// The endpoint's name may not resolve at first, because the name of a container or pod resolves
// only once the container or pod runs.
//
// Thread safety: none. An attempt blocks for at most kAttempt, plus 3 s if a peer answers, plus the
// time that the system takes to resolve a name.
class CoordinatorSearch {
 public:
  static constexpr std::chrono::milliseconds kAttempt{250};

  // Error(kInvalid) when the job has several nodes and no secret.
  CoordinatorSearch(EventLoop& loop, const LaunchOptions& options);

  // Makes one attempt; returns null if it finds no coordinator. Error(kTimeout) when join_timeout
  // has passed. (An agent that was the coordinator waits at most as long as the ranks may take to
  // be stopped.) Error(kInvalid) or Error(kSystem) for a problem that waiting cannot solve.
  std::unique_ptr<JobControl> find();
  // From now on find() looks for a successor. `last`: the start of the last generation.
  void lose(const LastStart& last, const std::string& cause);
  // From now on find() tries `leader` first, which the last coordinator named when it gave way.
  // `last`: the start of the last generation; nullopt before the first one.
  void follow(const Endpoint& leader, const std::optional<LastStart>& last);

  // The secret of a job with several nodes. Requires: find() has found a coordinator.
  const Secret& secret() const { return *secret_; }
  // The address at which other hosts reach this one, and the endpoint where this agent would
  // coordinate the job.
  const std::string& address() const { return address_; }
  const Endpoint& stand_in() const { return stand_in_; }
  // The endpoint of the coordinator that was found last.
  const Endpoint& current() const { return current_; }
  // Whether that coordinator is in this process.
  bool leads() const { return current_ == stand_in_; }

 private:
  CoordinatorSettings settings() const;
  [[noreturn]] void give_up() const;
  std::unique_ptr<JobControl> find_first();
  std::unique_ptr<JobControl> find_among_candidates();
  std::unique_ptr<JobControl> lead_next_generation();
  std::unique_ptr<JobControl> connect(const Endpoint& endpoint);
  bool name_is_known();
  void say_that_it_waits();
  Fd listen_if_host() const;
  Fd listen_for_the_others() const;
  void prepare_stand_in();
  bool is_own(const Endpoint& candidate) const;

  EventLoop& loop_;
  const LaunchOptions& options_;
  std::optional<Secret> secret_;
  Deadline give_up_at_;
  std::string cause_;   // why the last attempt failed
  bool named_ = false;  // the endpoint's name resolves
  Deadline look_up_at_ = Deadline::after(std::chrono::milliseconds(0));
  bool said_ = false;  // the user has been told that this agent waits
  Deadline say_at_;
  std::string address_;
  Endpoint current_;  // the endpoint of the coordinator that was found last
  Endpoint stand_in_;
  std::vector<Endpoint> own_;  // this agent's stand-in and its earlier ones
  Fd stand_in_listener_;
  std::optional<LastStart> last_;     // set once a coordinator was lost
  std::vector<Endpoint> candidates_;  // where to look for a successor, in turn
  std::size_t next_candidate_ = 0;
  std::string loss_text_;  // what was lost, and why; follows the word "lost" in messages
  bool was_coordinator_ = false;
};

// The connection to the current coordinator, and the services that the node offers to the current
// or next generation.
//
// Thread safety: none.
class JobMembership {
 public:
  // When this agent leads, the launcher of --hosts is told through `consoles`. The references must
  // outlive this object. Errors of the constructor and of seek(): as CoordinatorSearch.
  JobMembership(EventLoop& loop, const LaunchOptions& options, Consoles& consoles);

  // This node's host, as the user named it.
  std::string host() const;

  // Makes one attempt to find a coordinator, and joins the job through it with new services.
  void seek();
  // When the next attempt is due.
  Deadline seek_at() const { return seek_at_; }
  // Null while this agent looks for a coordinator.
  JobControl* coordinator() const { return coordinator_.get(); }
  bool coordinator_is_lost() const { return coordinator_ && !coordinator_->lost().empty(); }
  // Whether the coordinator is in this process.
  bool leads() const { return coordinator_ && search_.leads(); }
  // Drops the report while there is no coordinator.
  void report(const Report& report);
  // Call when the coordinator is lost; returns the cause. From now on seek() looks for a successor
  // or, if the job has not begun, for the same coordinator.
  std::string lose_coordinator();
  // Call when the coordinator has given way to another one, at `leader`. seek() then tries `leader`
  // first.
  void follow(const Endpoint& leader);

  // The terms of the job with its current budget of restarts, as far as this node knows.
  JobTerms terms() const;
  // Whether the job may continue under another coordinator: enough nodes are left, or a lost node
  // may be replaced. Requires: has_begun().
  bool may_have_a_successor() const;

  // Call when a generation starts. All nodes then use the services of the generation's node 0.
  void begin(const StartOrder& order);
  bool has_begun() const { return last_start_.has_value(); }
  // Requires: seek() has found a coordinator.
  JobServices& services() { return *services_; }
  // Call when nothing of the last generation is left. Makes new services for the next generation.
  Offer offer_anew();

 private:
  void claim_services();

  const LaunchOptions& options_;
  Consoles& consoles_;
  CoordinatorSearch search_;
  std::unique_ptr<JobControl> coordinator_;
  Deadline seek_at_ = Deadline::after(std::chrono::nanoseconds(0));
  std::unique_ptr<JobServices> services_;
  std::optional<LastStart> last_start_;
  bool said_leads_ = false;  // the launcher of --hosts believes that this node leads
};

}  // namespace paceline::launcher
