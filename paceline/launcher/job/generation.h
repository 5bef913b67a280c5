#pragma once

// One generation of this node's ranks: starts them, carries their output, stops them, and knows who
// failed first. A job that restarts makes a new one each time.
//
// The first rank that really ends badly is the culprit: it is reported at once, and the others get
// SIGTERM, then SIGKILL after a grace time. The loop calls handlers in the order in which
// descriptors became ready, so the order of deaths is the real one even when several come at once;
// but for one that a signal is still ending when another has noticed and exited, and one that
// others say made them fail (failure_order.h): it was first.
//
// Thread safety: none. Everything happens in the handlers it gives to the loop, and in tend().

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
#include "paceline/launcher/job/job_services.h"
#include "paceline/launcher/job/job_watch.h"
#include "paceline/launcher/job/launch_options.h"
#include "paceline/launcher/job/rank_process.h"
#include "paceline/launcher/job/rank_seeds.h"
#include "paceline/launcher/job_timeline/job_timeline.h"
#include "paceline/launcher/messages/roles.h"
#include "paceline/launcher/output/console.h"
#include "paceline/launcher/output/log_directory.h"
#include "paceline/launcher/process/event_loop.h"
#include "paceline/launcher/process/process_end.h"

namespace paceline::launcher {

// What all generations of a job on this node have in common. Everything outlives them.
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
  // `stdin_fd` is what rank 0 reads; -1: nothing. Starts all ranks. Error(kSystem).
  Generation(const GenerationContext& context, const NodePlace& place, const JobServices& services,
             int stdin_fd);
  Generation(const Generation&) = delete;
  Generation& operator=(const Generation&) = delete;
  // Requires: over(), or the process is about to end.
  ~Generation();

  const NodePlace& place() const { return place_; }
  // Called at the first failure, before the others are stopped.
  void when_failed(std::function<void()> handler) { when_failed_ = std::move(handler); }
  // Called with the report of it, in lines, once that is complete.
  void when_reported(std::function<void(const std::string&)> handler) {
    when_reported_ = std::move(handler);
  }

  // For what was heard of a failure elsewhere: a rank that a signal is ending, or has ended, at
  // this moment counts as failed before it. Waits for the end of one that is on its way out.
  void look_for_deaths();
  // To the ranks that still run; SIGKILL after `grace`, counted from the first call.
  void stop(int signal, std::chrono::nanoseconds grace);
  // The ranks that the job waits for have ended in order, and ranks of serving roles may run.
  bool work_is_done() const;
  // Stops those as stop() does: the generation ends in order.
  void wind_up(std::chrono::nanoseconds grace);
  // SIGKILL; `limit` says how long they had, "before the second SIGINT".
  void kill(const std::string& limit);
  void send(int signal);
  // To one rank; false when it does not run, or not on this node.
  bool send_to(int rank, int signal);

  // The same with SIGKILL, on purpose: `because` is the cause of its end.
  bool strike(int rank, const std::string& because);
  bool was_struck(int rank) const { return struck_.contains(rank); }

  // Once after each turn of the loop: what is due by time, and what the output needs.
  void tend();
  // By when tend() must be called.
  Deadline next_deadline() const;

  int num_running() const { return num_running_; }
  // True when the process is a rank that has not been waited for.
  bool owns(pid_t pid) const;
  // All ranks have ended, nothing of them is left and their output has been taken.
  bool over() const { return over_; }
  // Whoever failed before stop() was called.
  const std::optional<RankEnd>& culprit() const { return culprit_; }
  // Why it ended, where that is known, and once it is.
  const std::string& cause() const { return cause_; }
  // Ranks ended with kStoppedAsAgreed before wind_up(), and none failed; after stop(), all of them.
  bool stopped_as_agreed() const;
  // Those that ended badly because of that.
  const std::vector<RankEnd>& followers() const { return followers_; }
  // What is to be said of the ranks beside the culprit once all is over, in lines; may be empty.
  std::string closing_words() const;
  std::chrono::duration<double> age() const;
  // Why a rank's log is incomplete; empty when all are whole.
  std::string log_problem() const;
  // Why a rank's stdout is a pipe; empty when all are terminals.
  const std::string& no_terminal_because() const { return no_terminal_because_; }
  std::vector<int> ranks() const;

 private:
  std::unique_ptr<RankProcess> start_rank(int local_rank, const JobServices& services,
                                          int stdin_fd);
  std::array<Console*, 2> console_of(int local_rank);
  // The first failure has been found, or stop() or kill() called: what ends now follows from it.
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
  std::size_t num_stopped_ = 0;  // as agreed
  bool winds_up_ = false;
  enum class Stopping { kNo, kAsked, kKilled } stopping_ = Stopping::kNo;
  Deadline kill_at_ = Deadline::never();  // once asked
  std::string grace_;                     // until then, in words: "within 10 s of SIGTERM"
  std::vector<int> killed_;               // ranks that had not ended by then
  std::string killed_limit_;              // as kill() has it
  bool over_ = false;
  std::optional<Deadline> descendants_until_;  // once all ranks have ended
  std::vector<RankEnd> ends_;
  std::optional<RankEnd> culprit_;
  std::string cause_;
  std::vector<int> finished_;                 // ended with exit code 0 before the culprit
  RankProcess* unreported_ = nullptr;         // the culprit, while its stack is being read
  std::vector<RankEnd> followers_, fellows_;  // that failed because of the culprit, or beside it
  // Failed, and accuse ranks that may be about to end, or died of a signal that may be for the
  // whole job; none once there is a culprit.
  std::vector<std::pair<RankProcess*, RankEnd>> undecided_;
  Deadline undecided_until_ = Deadline::never();
  Leftovers leftovers_;
  std::string no_terminal_because_;
  std::set<int> struck_;
};

// What the user is told, once each, about output that is lost or late: logs that could not be
// written, what the ranks printed that could not be shown, ranks without a terminal.
//
// Thread safety: none.

class OutputWarnings {
 public:
  // The references must outlive it.
  OutputWarnings(Consoles& consoles, const LogDirectory& logs);

  // After each turn of the loop. `running` may be null.
  void tend(const Generation* running);

 private:
  void warn_about_logs(const Generation& running);
  void warn_about_console();
  void warn_about_terminals(const Generation& running);

  Consoles& consoles_;
  const LogDirectory& logs_;
  bool warned_about_logs_ = false, warned_about_console_ = false, warned_about_terminals_ = false;
};

}  // namespace paceline::launcher
