#pragma once

// Watches the ranks of this node: reads the stacks of ranks that crash, finds the causes of
// failures, notices hangs and stragglers, and answers `paceline ps`, `paceline stacks` and
// `paceline stop` (launcher/messages/job_socket.h).
//
// Thread safety: none; everything happens in handlers of the loop.

#include <chrono>
#include <cstdint>
#include <ctime>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <sys/types.h>
#include <unistd.h>

#include "paceline/engine/core/deadline.h"
#include "paceline/launcher/diagnosis/failure_report.h"
#include "paceline/launcher/diagnosis/hang_watch.h"
#include "paceline/launcher/diagnosis/out_of_memory.h"
#include "paceline/launcher/diagnosis/stack_reader.h"
#include "paceline/launcher/diagnosis/straggler_watch.h"
#include "paceline/launcher/messages/agent_messages.h"
#include "paceline/launcher/messages/job_socket.h"
#include "paceline/launcher/messages/job_terms.h"
#include "paceline/launcher/process/event_loop.h"
#include "paceline/launcher/process/process.h"
#include "paceline/launcher/ranks/launch_options.h"

namespace paceline::launcher {

class JobWatch {
 public:
  struct Folders {
    std::string logs, flights;  // empty: none
  };
  struct Actions {
    std::function<void(const std::string&)> say;
    std::function<void(int rank)> kill;
    std::function<void(const Report&)> report;
    QuietRanks::Meeting meeting;  // for the running generation; may be empty
  };

  // `plan` and `loop` must outlive the watch.
  JobWatch(EventLoop& loop, const LaunchPlan& plan, Folders folders, Actions actions);
  JobWatch(const JobWatch&) = delete;
  JobWatch& operator=(const JobWatch&) = delete;
  ~JobWatch();

  // Sets the variable that names the socket to which a rank reports a crash.
  void add_variables(Environment& environment) const;
  // Reports to the coordinator where this node's ranks are.
  void look(const LookOrder& order);
  // Call when the job hangs. Prints the report, with the stacks of this node's ranks if one of them
  // is named or is hang.witness, and ends the named ranks if the user wants that (--hang-action).
  void show(const HangOrder& hang);
  // Call when one of this node's ranks keeps the others waiting. Prints the probable cause.
  void show(const StragglerOrder& straggler);
  // Call when the user has stopped the ranks, or has continued them. While they are stopped, no
  // hang or straggler is reported.
  void rest(bool at_rest);
  bool at_rest() const { return at_rest_; }
  void begin_generation(const NodePlace& place);
  void rank_started(int rank, pid_t pid);
  void rank_ended(int rank);

  // Whether it is too early to report this rank as the first one that failed: its stack is being
  // read after a crash, or ranks of another host are being ended because of a hang, and this rank
  // may have failed only because those ranks ended.
  bool holds_back(int rank) const {
    return (crashes_.contains(rank) && !crashes_.at(rank).known) || !others_ending_until_.expired();
  }
  // Records why the launcher ends this rank on purpose.
  void ended_because(int rank, std::string cause) { ended_because_[rank] = std::move(cause); }
  // Adds the cause and the stack to the report of the first failure.
  void explain(const RankEnd& end, FailureContext& context);
  // The pids of the processes that are reading stacks of running ranks.
  std::vector<pid_t> stack_helpers() const;

 private:
  struct Crash {
    JobRequest request;                   // holds the rank's connection until the reader starts
    std::unique_ptr<StackReader> reader;  // set while the stack is being read
    bool known = false;                   // `stacks` holds all that could be read
    ProcessStacks stacks;
    std::optional<FileSystemSpace> shared;  // /dev/shm at the moment of the crash
  };

  // Calls `body`. If it throws an Error, reports that as a warning.
  void guarded(const std::function<void()>& body);
  void answer(JobRequest request);
  void on_crash(JobRequest request);
  void read_crashes();
  void crash_read(int rank, ProcessStacks stacks);
  void send_stacks(JobRequest request);
  std::string description() const;
  void look_for_hang();
  void make_straggler_watch();
  void watch_anew();
  void look_for_straggler();
  void report_shares();
  void report_whereabouts(int round) const;
  // The flight records of this node's ranks, including ranks that have ended; empty if there are
  // none.
  std::vector<Flight> own_flights() const;
  bool is_own(int rank) const;
  void tell(const HangOrder& hang);
  void end_hanging(const HangOrder& hang);
  std::string advice() const;
  // The processes and threads whose stacks are to be read. With `inside`, only threads that matter
  // in a hang: the main thread, and threads inside an operation.
  std::map<int, StackReader::Target> targets(const std::vector<Flight>& flights, bool inside) const;
  // The rank to which the process belongs; nullopt for any other process.
  std::optional<int> rank_of(pid_t pid) const;

  EventLoop& loop_;
  const LaunchPlan& plan_;
  const Folders folders_;
  const Actions actions_;
  MemoryCounters memory_at_start_;  // when the generation began
  const pid_t supervisor_ = getppid();
  KernelLog kernel_log_;
  const std::int64_t started_ = std::time(nullptr);  // seconds since 1970
  NodePlace place_;
  std::map<int, pid_t> ranks_;  // the ranks that run
  std::map<int, Crash> crashes_;
  std::map<int, std::string> ended_because_;  // ranks that were ended on purpose
  bool at_rest_ = false;
  Deadline others_ending_until_ = Deadline::after(std::chrono::nanoseconds(0));
  std::optional<HangWatch> hang_watch_;
  Fd hang_timer_;
  std::unique_ptr<StackSurvey> hang_survey_;
  std::optional<StragglerWatch> straggler_watch_;    // for a job on one node
  std::optional<StragglerReport> straggler_report_;  // for a job on several nodes
  Fd straggler_timer_;
  std::map<int, std::unique_ptr<StackSurvey>> asked_surveys_;
  int num_asked_ = 0;
  JobSocket socket_;
};

}  // namespace paceline::launcher
