#pragma once

// A node's part in its job: finds the coordinator, joins under it, and goes to another one when it
// is lost.

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

// The order that started the last generation of this node's ranks, and when it came.
struct LastStart {
  StartOrder order;
  AwakeClock::time_point at = AwakeClock::now();

  // The budget of restarts as it is by now.
  RestartBudget restarts() const { return order.place.restarts.after(AwakeClock::now() - at); }
};

// Finds the coordinator of this agent's job, or becomes it.
//
// At first:
//   1. The agent of node 0 is the coordinator and listens at the endpoint. Without given node ranks
//      it is the first agent at the host that the endpoint names. The others connect to it.
// After a loss:
//   2. Every agent has listened at a stand-in endpoint since it joined, and all agents know the
//      stand-ins of all nodes from the order that started the last generation.
//   3. Each agent tries the coordinator that it lost, then the stand-ins in the order of node
//      ranks. An agent that comes to its own endpoint becomes the coordinator. So all agents that
//      reach each other agree on the first live one, without a vote.
//   4. The successor numbers its first generation one above the last, so that nothing of that one
//      reaches it, and goes on with the budget of restarts in that order.
//   5. An agent that was the coordinator and was given up by the others looks for its successor
//      among them, and never becomes it again: it does not know what they have done meanwhile.
//   6. Two halves of a network that cannot see each other become two jobs only when each has as
//      many nodes as MIN of --nnodes. A coordinator with fewer asks the other agents for a larger
//      half and gives way to it (coordination/coordinator.h); its agents follow.
//
// The endpoint's name may be unknown for a while, because the names of containers and pods come
// with them.
//
// Thread safety: none. An attempt blocks for at most kAttempt, or 3 s with a peer that answers, or
// as long as the system looks for a name.
class CoordinatorSearch {
 public:
  static constexpr std::chrono::milliseconds kAttempt{250};

  // Error(kInvalid) when the job has several nodes and no secret.
  CoordinatorSearch(EventLoop& loop, const LaunchOptions& options);

  // Makes one attempt; returns nothing when there is no coordinator yet. Error(kTimeout) once
  // join_timeout is over, or the time in which the others must have found each other;
  // Error(kInvalid) or Error(kSystem) for a problem that time does not solve.
  std::unique_ptr<JobControl> find();
  // From now on find() looks for a successor. `last`: the start of the last generation.
  void lose(const LastStart& last, const std::string& cause);
  // From now on find() tries `leader` first, which the last coordinator named when it gave way.
  // `last` as above; nothing before the first generation.
  void follow(const Endpoint& leader, const std::optional<LastStart>& last);

  // The secret of a job with several nodes. Requires: find() has found a coordinator.
  const Secret& secret() const { return *secret_; }
  // Where other hosts reach this one, and where it would coordinate.
  const std::string& address() const { return address_; }
  const Endpoint& stand_in() const { return stand_in_; }
  // Where the coordinator was found last.
  const Endpoint& current() const { return current_; }
  // The coordinator is this process's.
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
  bool named_ = false;  // the endpoint's name has an address
  Deadline look_up_at_ = Deadline::after(std::chrono::milliseconds(0));
  bool said_ = false;  // the user knows that it waits
  Deadline say_at_;
  std::string address_;
  Endpoint current_;  // of the coordinator that was found last
  Endpoint stand_in_;
  std::vector<Endpoint> own_;  // the stand-in and earlier ones
  Fd stand_in_listener_;
  std::optional<LastStart> last_;     // once the coordinator was lost
  std::vector<Endpoint> candidates_;  // where to look for a successor, in turn
  std::size_t next_candidate_ = 0;
  std::string lost_because_;
  bool was_coordinator_ = false;
};

// The connection to the coordinator, whichever that is, and the services that the node offers to
// the current or next generation.
//
// Thread safety: none.
class JobMembership {
 public:
  // The launcher of --hosts learns by `consoles` when this agent leads. The references must outlive
  // it. The errors of CoordinatorSearch, here and in seek().
  JobMembership(EventLoop& loop, const LaunchOptions& options, Consoles& consoles);

  // This node, as the user calls it.
  std::string host() const;

  // Makes one attempt to find a coordinator, and joins under it with new services.
  void seek();
  // When the next one is due.
  Deadline seek_at() const { return seek_at_; }
  // Null while this agent looks for one.
  JobControl* coordinator() const { return coordinator_.get(); }
  bool coordinator_is_lost() const { return coordinator_ && !coordinator_->lost().empty(); }
  // The coordinator is this process's.
  bool leads() const { return coordinator_ && search_.leads(); }
  // Drops the report while there is no coordinator.
  void report(const Report& report);
  // The coordinator is gone; returns why. From now on seek() looks for a successor, or before the
  // job has begun for the same coordinator.
  std::string lose_coordinator();
  // The coordinator gave way to the one at `leader`, for which seek() looks from now on.
  void follow(const Endpoint& leader);

  // The terms of the job with its budget of restarts by now, as far as this node knows.
  JobTerms terms() const;
  // Whether the job may go on under another coordinator: enough nodes are left, or may come.
  // Requires: has_begun().
  bool may_have_a_successor() const;

  // A generation starts, with the services of its first node.
  void begin(const StartOrder& order);
  bool has_begun() const { return last_start_.has_value(); }
  // Requires: seek() has found a coordinator.
  JobServices& services() { return *services_; }
  // Nothing of the last generation is left: new services for the next.
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
  bool said_leads_ = false;  // the launcher of --hosts takes this node for the leader
};

}  // namespace paceline::launcher
