#pragma once

// One generation of this node's ranks. It starts the ranks, passes on their output, stops them, and
// finds out which rank failed first. A job that restarts creates a new Generation each time.
//
// The first rank that fails is the culprit: the launcher reports it at once, sends SIGTERM to the
// other ranks, and SIGKILL after a grace time. These rules decide which rank was first:
//
//   1. The loop calls handlers in the order in which descriptors became ready, so by default the
//      order of deaths is the order of these calls.
//   2. A rank that is being killed by a signal counts as first, even if another rank noticed that
//      and exited earlier (look_for_deaths).
//   3. If the output or the flight record of a failed rank accuses another rank of this node that
//      still runs, the decision waits for the end of the accused rank. If that rank fails in time,
//      it counts as first (accused_rank in failure_report.h).
//   4. If a rank was killed by a signal that usually stops whole jobs, the decision also waits: the
//      signal may be meant for the whole job, and may be about to reach the launcher. If another
//      rank fails meanwhile, but not by such a signal, the signal was meant only for the rank that
//      it killed, which then counts as first.
//
// Thread safety: none. Everything happens in handlers that the loop calls, and in tend().

#include <array>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <sys/types.h>

#include "paceline/engine/core/deadline.h"
#include "paceline/launcher/diagnosis/failure_report.h"
#include "paceline/launcher/diagnosis/thread_census.h"
#include "paceline/launcher/job/job_flights.h"
#include "paceline/launcher/job/job_watch.h"
#include "paceline/launcher/job_timeline/job_timeline.h"
#include "paceline/launcher/messages/job_terms.h"
#include "paceline/launcher/output/console.h"
#include "paceline/launcher/output/log_directory.h"
#include "paceline/launcher/process/event_loop.h"
#include "paceline/launcher/process/process.h"
#include "paceline/launcher/ranks/job_services.h"
#include "paceline/launcher/ranks/launch_options.h"
#include "paceline/launcher/ranks/rank_process.h"
#include "paceline/launcher/ranks/rank_seeds.h"

namespace paceline::launcher {

// The objects that all generations of a job on this node share. They outlive the generations.
struct GenerationContext {
  const LaunchPlan& plan;
  EventLoop& loop;
  Consoles& consoles;
  LogDirectory& logs;
  JobFlights& flights;
  const JobMemory& memory;
  JobTimeline& timeline;
  JobWatch& watch;
  RankSeeds& seeds;
};

class Generation {
 public:
  // Starts all ranks. `stdin_fd`: the input of rank 0; -1: none. Error(kSystem).
  Generation(const GenerationContext& context, const NodePlace& place, const JobServices& services,
             int stdin_fd);
  Generation(const Generation&) = delete;
  Generation& operator=(const Generation&) = delete;
  // Requires: over(), or the process is about to end.
  ~Generation();

  const NodePlace& place() const { return place_; }
  // Sets the function to call at the first failure, before the other ranks are stopped.
  void when_failed(std::function<void()> handler) { when_failed_ = std::move(handler); }
  // Sets the function to call with the lines of the report of the first failure, once the report is
  // complete.
  void when_reported(std::function<void(const std::string&)> handler) {
    when_reported_ = std::move(handler);
  }

  // Call this when another node reports a failure. A rank of this node that a signal has killed, or
  // is killing at this moment, failed before the reported rank. Waits for the end of such a rank.
  void look_for_deaths();
  // Sends the signal to the ranks that still run, and SIGKILL when `grace` has passed since the
  // first call.
  void stop(int signal, std::chrono::nanoseconds grace);
  // Whether all ranks that the job waits for have ended without a failure; ranks of serving roles
  // may still run.
  bool work_is_done() const;
  // Stops the ranks of serving roles as stop() does, but their ends are not failures.
  void wind_up(std::chrono::nanoseconds grace);
  // Sends SIGKILL. `limit` is the time that the ranks had, in words: "before the second SIGINT".
  void kill(const std::string& limit);
  void send(int signal);
  // Sends the signal to each rank once the rank has a handler: before that it would end the rank.
  void send_when_handled(int signal);
  // Signals one rank; returns false if the rank does not run on this node.
  bool send_to(int rank, int signal);
  // Kills one rank on purpose; `because` is the cause of its end. Returns false as send_to() does.
  bool kill_on_purpose(int rank, const std::string& because);
  bool was_killed_on_purpose(int rank) const { return killed_on_purpose_.contains(rank); }

  // Call this after each iteration of the loop: acts on deadlines and on consoles that are full.
  void tend();
  // The time by which tend() must be called again.
  Deadline next_deadline() const;

  int num_running() const { return num_running_; }
  // Whether the process is a rank that has not been reaped.
  bool owns(pid_t pid) const;
  // Whether all ranks and the processes that they started have ended, and no output waits for a
  // console.
  bool over() const { return over_; }
  // The rank that failed first; nullopt if none failed before stop() was called.
  const std::optional<RankEnd>& culprit() const { return culprit_; }
  // Why the culprit ended; empty while that is not known.
  const std::string& cause() const { return cause_; }
  // Whether ranks ended with kStoppedAsAgreed before wind_up(), and none failed. After stop(), this
  // is true only if all ranks ended in this way.
  bool stopped_as_agreed() const;
  // The ranks that failed because the culprit did.
  const std::vector<RankEnd>& followers() const { return followers_; }
  // Lines about the ranks other than the culprit, to print when the generation is over; may be
  // empty.
  std::string closing_words() const;
  std::chrono::duration<double> age() const;
  // Why a rank's log is incomplete; empty when all logs are complete.
  std::string log_problem() const;
  // Why a rank's stdout is a pipe; empty when the stdout of every rank is a terminal.
  const std::string& no_terminal_because() const { return no_terminal_because_; }
  std::vector<int> ranks() const;

 private:
  std::unique_ptr<RankProcess> start_rank(int local_rank, const JobServices& services,
                                          int stdin_fd);
  std::array<Console*, 2> console_of(int local_rank);
  // Whether the culprit has been found, or stop() or kill() has been called. Ranks that end
  // afterwards usually end because of that.
  bool ending() const { return culprit_ || stopping_ != Stopping::kNo; }
  void watch_rank(std::size_t index);
  void watch_first_rank();
  void on_watch();
  void on_end(std::size_t index);
  void become_culprit(RankProcess& rank, const RankEnd& end);
  void take_later_end(const RankProcess& rank, const RankEnd& end);
  bool may_have_followed(const RankProcess& rank);
  bool may_belong_to_a_stop(const RankEnd& end);
  void decide();
  bool is_running(int rank) const;
  std::optional<AccusedRank> accused_by(const RankProcess& rank) const;
  void read(std::size_t index, int stream);
  void drain(RankOutput& output);
  void close_outputs();
  void hold_back_or_resume();
  std::vector<RankEnd> ends_so_far() const;
  void report_when_known();
  void report(RankProcess& culprit);

  const GenerationContext context_;
  const NodePlace place_;
  const std::chrono::steady_clock::time_point started_ = std::chrono::steady_clock::now();
  std::vector<std::unique_ptr<RankProcess>> ranks_;
  std::optional<RankWatch> watch_;
  std::function<void()> when_failed_;
  std::function<void(const std::string&)> when_reported_;
  int num_running_ = 0;
  std::size_t num_stopped_ = 0;  // ranks that ended by an agreed stop, before wind_up()
  bool winds_up_ = false;
  enum class Stopping { kNo, kAsked, kKilled } stopping_ = Stopping::kNo;
  Deadline kill_at_ = Deadline::never();  // when to send SIGKILL, while kAsked
  std::string grace_;                     // the time until kill_at_: "within 10 s of SIGTERM"
  std::vector<int> killed_;               // ranks that still ran at the first kill()
  std::string killed_limit_;              // the argument of the first kill()
  bool over_ = false;
  std::optional<Deadline> descendants_until_;  // set once all ranks have ended
  std::vector<RankEnd> ends_;
  std::optional<RankEnd> culprit_;
  std::string cause_;
  std::vector<int> finished_;          // ranks that ended with exit code 0 before the culprit
  RankProcess* unreported_ = nullptr;  // the culprit, until its report is complete
  // Ranks that failed because of the culprit, and ranks that may have failed independently of it.
  std::vector<RankEnd> followers_, fellows_;
  // The failed ranks for which the decision waits (rules 3 and 4); empty once there is a culprit.
  std::vector<std::pair<RankProcess*, RankEnd>> undecided_;
  Deadline undecided_until_ = Deadline::never();
  Leftovers leftovers_;
  std::string no_terminal_because_;
  std::set<int> killed_on_purpose_;
  std::vector<std::pair<RankProcess*, int>> unsent_;  // signals of send_when_handled()
};

}  // namespace paceline::launcher
