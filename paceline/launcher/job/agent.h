#pragma once

// The agent is the launcher's worker process on one node. It starts the ranks of each generation
// (generation.h) when the job's coordinator orders it (launcher/coordination/coordinator.h; this
// process may contain the coordinator), reports how they end, and runs until the job is over. It
// has one thread, with one event loop over the ranks, the other agents and the supervisor's control
// pipe. It never waits for a reader of its stdout or stderr.
//
// Thread safety: none. Requires, like RankSeeds, that orphans become children of this process.

#include <chrono>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "paceline/engine/core/deadline.h"
#include "paceline/launcher/job/chaos_injector.h"
#include "paceline/launcher/job/generation.h"
#include "paceline/launcher/job/job_membership.h"
#include "paceline/launcher/job/job_watch.h"
#include "paceline/launcher/job/run_tally.h"
#include "paceline/launcher/output/console.h"
#include "paceline/launcher/process/descendants.h"
#include "paceline/launcher/process/event_loop.h"
#include "paceline/launcher/process/supervisor.h"
#include "paceline/launcher/ranks/launch_options.h"

namespace paceline::launcher {

// Runs the agent and returns the exit code of the job: 0; the code of the failure that ended the
// job (128 + N for a signal); kStoppedAsAgreed after an agreed stop; or 128 + N if signal N asked
// the launcher to stop. kExitEnvironment if a job without a failure could not write all its output.
// Error(kInvalid), Error(kTimeout) or Error(kSystem) when the nodes of the job do not find each
// other.
int run_agent(const LaunchPlan& plan, AgentChannel channel);

class Agent {
 public:
  // `plan`, `loop` and `consoles` must outlive the agent. Error(kInvalid) for a log folder that
  // cannot be used.
  Agent(const LaunchPlan& plan, AgentChannel channel, EventLoop& loop, Consoles& consoles);
  Agent(const Agent&) = delete;
  Agent& operator=(const Agent&) = delete;

  // Call this once. Returns and throws as run_agent() does.
  int run();

 private:
  // Functions that carry out the coordinator's orders or handle its loss.
  void follow_orders();
  void obey(const StartOrder& order);
  void obey(const StopOrder& order);
  void obey(const WaitOrder& order);
  void obey(const EndOrder& order);
  void obey(const LookOrder& order) { watch_.look(order); }
  void obey(HangOrder order);
  void obey(const StragglerOrder& order) { watch_.show(order); }
  void obey(const FirstFailureOrder& order);
  void obey(const FollowOrder& order);
  void obey(const WindUpOrder& order);
  void obey(const HeardOrder&) {}  // an AgentCall handles this answer
  void remove_old_flights(const NodePlace& place) const;
  void stop_ranks(std::chrono::nanoseconds grace);  // all ranks of this node that still run
  void on_coordinator_lost();
  void report_stopped();
  Absence meeting();  // the waiting and the missing ranks of the first rendezvous

  // Functions for the ranks.
  void on_failure();
  void on_work_done();
  void on_generation_over();
  bool running() const { return generation_ && !generation_->over(); }

  // The newest generation's stage; kFinished before the first. Below, "stop" is a StopOrder or the
  // loss of the coordinator, and "over" is the end of all ranks.
  //   running ──stop──▶ stopping ──over──▶ stopped ◀──over after a failure── running
  //      └──over without a failure──▶ finished ──stop──▶ stopped
  enum class Stage { kRunning, kStopping, kStopped, kFinished };
  bool stops() const { return stage_ == Stage::kStopping || stage_ == Stage::kStopped; }
  bool all_ended() const { return stage_ == Stage::kStopped || stage_ == Stage::kFinished; }

  // Messages. With --hosts all nodes share one console: the leading node prints those of the job,
  // and a failure is held back until it is known to be the job's first.
  bool shares_console() const { return plan_.options.part.has_value(); }
  void say_of_job(const std::string& text);
  void say_of_failure(const std::string& text);
  void say_held_back();

  // Functions for the rest of the process.
  void loop();
  void tend_chaos();
  void warn_about_output();
  Deadline next_deadline() const;
  bool finished() const;
  void on_control();
  void on_signal(int signal);
  void reap_orphans();

  // Functions for the end of the job.
  bool ending() const { return end_ || stop_signal_ != 0; }
  NodeEnd node_end() const;
  void conclude();
  void finish_timeline();
  void say_tally();
  void explain_end();
  void remove_records();
  int exit_code() const;

  const LaunchPlan& plan_;
  AgentChannel channel_;
  EventLoop& loop_;
  Consoles& consoles_;
  LogDirectory logs_;
  JobFlights flights_;
  const JobMemory memory_;
  JobTimeline timeline_;
  JobWatch watch_;
  RankSeeds seeds_;
  ChaosInjector chaos_;
  RunTally tally_;
  Orphans orphans_;
  JobMembership membership_;
  std::unique_ptr<Generation> generation_;
  std::string stopped_for_;    // why the coordinator stopped the last generation
  std::string own_cause_;      // the failure of this node's culprit, as reported to the coordinator
  bool failed_first_ = false;  // the job's first failure in this generation was on this node
  std::string held_back_;      // messages about a failure that may not be the first of the job
  bool work_done_ = false;     // on_work_done() was called in this generation
  Stage stage_ = Stage::kFinished;
  bool warned_about_logs_ = false, warned_about_terminals_ = false, warned_about_console_ = false;
  bool abandoned_ = false;      // the supervisor has ended, or a later SIGINT skips the last output
  bool logs_may_go_ = false;    // logs may be removed, unless output was lost on the console
  std::set<int> late_signals_;  // for the ranks of the next generation: SIGUSR1 and SIGUSR2
  int stop_signal_ = 0;         // the first signal that asked the job to end; 0: none
  std::optional<EndOrder> end_;
  // Set once the end of the job has been reported: the limit for sending the last messages to other
  // agents.
  std::optional<Deadline> concluded_;
};

}  // namespace paceline::launcher
