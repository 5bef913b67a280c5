#pragma once

// What an agent tells the launcher of --hosts, on whichever machine that is, besides its words
// (launcher/output/console.h): frames (launcher/messages/remote_frames.h), which this host's
// remote end carries.
//
// Thread safety: none.

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "paceline/engine/core/authentication.h"
#include "paceline/engine/core/deadline.h"
#include "paceline/engine/core/system/socket.h"
#include "paceline/launcher/coordination/coordinator.h"
#include "paceline/launcher/coordination/job_control.h"
#include "paceline/launcher/job/job_services.h"
#include "paceline/launcher/job/launch_options.h"
#include "paceline/launcher/messages/agent_messages.h"
#include "paceline/launcher/process/event_loop.h"

namespace paceline::launcher {

class LauncherChannel {
 public:
  // As LaunchOptions::notices_fd.
  explicit LauncherChannel(int notices_fd) : notices_fd_(notices_fd) {}

  // This agent leads the job, and the others meet it there.
  void say_leads(const Endpoint& meeting) const;
  // The job is over on all hosts, with this exit code.
  void say_over(int exit_code) const;
  // A rank's, packed. Requires such a launcher.
  void send_timeline(const std::string& packed) const;

 private:
  const int notices_fd_;
};

// How an agent comes by the coordinator of its job, and to another one when that is gone.
//
// At first: the agent of node 0, or without given node ranks the first one at the host that the
// endpoint names, is the coordinator itself and listens at the endpoint; the others connect to it.
//
// After a loss: every agent listens somewhere from the start (its stand-in endpoint, known to all
// since the last generation began). All try the coordinator that they lost, then the stand-ins in
// the order of node ranks; whoever comes to its own endpoint on the way is the new coordinator. Two
// halves of a network that cannot see each other can thus become two jobs when each has as many
// nodes as MIN of --nnodes; one with fewer finds the other and gives way (coordination/
// coordinator.h), and its agents follow. An agent that was the coordinator itself and was given up
// by the others looks for its successor among them, and does not become it again: what they have
// done meanwhile is not known here.
//
// The endpoint's name may be unknown for a while: those of containers and pods come with them.
//
// Thread safety: none. An attempt blocks for at most kAttempt, or 3 s with a peer that answers, or
// as long as the system looks for a name.

class CoordinatorSearch {
 public:
  static constexpr std::chrono::milliseconds kAttempt{250};

  // Error(kInvalid) when the job has several nodes and no secret.
  CoordinatorSearch(EventLoop& loop, const LaunchOptions& options);

  // One attempt; nothing when there is no coordinator yet. Error(kTimeout) once join_timeout is
  // over, or the time in which the others must have found each other; Error(kInvalid),
  // Error(kSystem) for what will not get better.
  std::unique_ptr<JobControl> find();
  // From now on find() looks for a successor. `last` is the order that started the last generation.
  void lose(const StartOrder& last, const std::string& cause);
  // From now on find() tries `leader` first: an agent that gave way to it has named it. Requires:
  // the coordinator that was found is gone. `last` as above; nothing before the first generation.
  void follow(const Endpoint& leader, const std::optional<StartOrder>& last);

  // Of a job with several nodes. Requires: find() has found.
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
  bool said_ = false;  // that it waits
  Deadline say_at_;
  std::string address_;
  Endpoint current_;  // of the coordinator that was found last
  Endpoint stand_in_;
  std::vector<Endpoint> own_;  // that, and what it was before
  Fd stand_in_listener_;
  std::optional<StartOrder> last_;    // once the coordinator was lost
  std::vector<Endpoint> candidates_;  // where it is looked for then, in turn
  std::size_t next_candidate_ = 0;
  std::string lost_because_;
  bool was_coordinator_ = false;
};

// A node's part in its job: finds the coordinator, joins under it, and goes to another one when it
// is lost; and the services that the node offers to the current or next generation.
//
// Thread safety: none.

class JobMembership {
 public:
  // `launcher`, of --hosts, hears when this agent leads. The references must outlive it. Errors as
  // CoordinatorSearch has them, here and in seek().
  JobMembership(EventLoop& loop, const LaunchOptions& options, const LauncherChannel& launcher);

  // This node, as the user calls it.
  std::string host() const;

  // One attempt to find a coordinator, which it joins with new services.
  void seek();
  // When the next one is due.
  Deadline seek_at() const { return seek_at_; }
  // Null while it is looked for.
  JobControl* coordinator() const { return coordinator_.get(); }
  bool coordinator_is_lost() const { return coordinator_ && !coordinator_->lost().empty(); }
  // The coordinator is this process's.
  bool leads() const { return coordinator_ && search_.leads(); }
  // It is not sent while there is no coordinator.
  void report(const Report& report);
  // The coordinator is gone; returns why. Once the job has begun, another one is looked for, before
  // that the same.
  std::string lose_coordinator();
  // The coordinator gave way to the one at `leader`, which is looked for.
  void follow(const Endpoint& leader);

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
  const LauncherChannel& launcher_;
  CoordinatorSearch search_;
  std::unique_ptr<JobControl> coordinator_;
  Deadline seek_at_ = Deadline::after(std::chrono::nanoseconds(0));
  std::unique_ptr<JobServices> services_;
  std::optional<StartOrder> last_start_;
  bool said_leads_ = false;  // what the launcher of --hosts knows
};

}  // namespace paceline::launcher
