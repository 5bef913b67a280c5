#pragma once

// A node's part in its job: finds the coordinator, joins under it, and goes to another one when it
// is lost; and the services that the node offers to the current or next generation.
//
// Thread safety: none.

#include <memory>
#include <optional>
#include <string>

#include "paceline/engine/core/deadline.h"
#include "paceline/launcher/coordination/job_control.h"
#include "paceline/launcher/job/coordinator_search.h"
#include "paceline/launcher/job/job_services.h"
#include "paceline/launcher/job/launch_options.h"
#include "paceline/launcher/job/launcher_channel.h"
#include "paceline/launcher/messages/agent_messages.h"
#include "paceline/launcher/process/event_loop.h"

namespace paceline::launcher {

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
