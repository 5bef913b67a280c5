#pragma once

// The launcher's eyes on its job: looks at ranks that crash before they are gone, collects what is
// known of an end, notices when nothing moves any more or one rank holds the others up, and answers
// who asks about the job (launcher/messages/job_socket.h).
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
#include "paceline/launcher/job/launch_options.h"
#include "paceline/launcher/messages/agent_messages.h"
#include "paceline/launcher/messages/job_socket.h"
#include "paceline/launcher/messages/roles.h"
#include "paceline/launcher/process/event_loop.h"
#include "paceline/launcher/process/process.h"

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
    QuietRanks::Meeting meeting;  // of the generation that runs; empty: nothing is known of it
  };

  // `plan` and `loop` must outlive it.
  JobWatch(EventLoop& loop, const LaunchPlan& plan, Folders folders, Actions actions);
  JobWatch(const JobWatch&) = delete;
  JobWatch& operator=(const JobWatch&) = delete;
  ~JobWatch();

  // What tells a rank which process to tell when it crashes.
  void add_variables(Environment& environment) const;
  // Reports where this node's ranks are.
  void look(const LookOrder& order);
  // The job hangs: says so, with the stacks of this node's ranks when one of them is named or
  // waits, and ends those that are named where that is asked (--hang-action).
  void show(const HangOrder& hang);
  // One of this node's ranks keeps the others waiting.
  void show(const StragglerOrder& straggler);
  // The user has stopped the ranks, or let them go on: until then nothing is reported about them.
  void rest(bool at_rest);
  bool at_rest() const { return at_rest_; }
  void begin_generation(const NodePlace& place);
  void rank_started(int rank, pid_t pid);
  void rank_ended(int rank);

  // It is too early to report this rank as the first that failed: it crashed, and its stack is
  // being read; or ranks of another host are being ended for a hang, which makes this one fail.
  bool holds_back(int rank) const {
    return (crashes_.contains(rank) && !crashes_.at(rank).known) || !ended_elsewhere_.expired();
  }
  // The cause of this rank's end, which is expected, is known.
  void ended_because(int rank, std::string cause) { ended_because_[rank] = std::move(cause); }
  // Adds cause and stack to the report of the first failure.
  void explain(const RankEnd& end, FailureContext& context);

 private:
  struct Crash {
    JobRequest request;                   // until it is read
    std::unique_ptr<StackReader> reader;  // while it is
    bool known = false;                   // then `stacks` has what could be read
    ProcessStacks stacks;
    std::optional<FileSystemRoom> shared;  // /dev/shm at that moment
  };

  // A failure to inspect ranks is reported, and has no other effect.
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
  // Those of this node's ranks, also the ended ones; none when there are no records.
  std::vector<Flight> own_flights() const;
  bool is_own(int rank) const;
  void tell(const HangOrder& hang);
  void end_hanging(const HangOrder& hang);
  std::string advice() const;
  // `inside` limits the threads to those that matter in a hang: the first one, and the one inside
  // an operation.
  std::map<int, StackReader::Target> targets(const std::vector<Flight>& flights, bool inside) const;
  // The rank that `pid` is or descends from; nothing when it is none's.
  std::optional<int> rank_of(pid_t pid) const;

  EventLoop& loop_;
  const LaunchPlan& plan_;
  const Folders folders_;
  const Actions actions_;
  MemoryCounters memory_at_start_;  // of the generation
  const pid_t supervisor_ = getppid();
  KernelLog kernel_log_;
  const std::int64_t started_ = std::time(nullptr);  // seconds since 1970
  NodePlace place_;
  std::map<int, pid_t> ranks_;  // those that run
  std::map<int, Crash> crashes_;
  std::map<int, std::string> ended_because_;  // ranks that were ended on purpose
  bool at_rest_ = false;
  Deadline ended_elsewhere_ = Deadline::after(std::chrono::nanoseconds(0));
  std::optional<HangWatch> hang_watch_;
  Fd hang_timer_;
  std::unique_ptr<StackSurvey> hang_survey_;
  std::optional<StragglerWatch> straggler_watch_;    // of a job on one node
  std::optional<StragglerReport> straggler_report_;  // of several
  Fd straggler_timer_;
  std::map<int, std::unique_ptr<StackSurvey>> asked_surveys_;
  int num_asked_ = 0;
  JobSocket socket_;
};

}  // namespace paceline::launcher
