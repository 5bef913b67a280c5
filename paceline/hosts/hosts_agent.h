#pragma once

// Starts a job on several hosts and stays until it has ended everywhere: the agent
// (process/supervisor.h) of `paceline run --hosts`. One thread, one event loop over the
// connections.
//
// No host starts a rank before every host has answered. Host 0 gets its part first, holds the job's
// ports and says which; then the others get theirs (hosts_agent_start.cpp). When a rank fails the
// others are stopped at once (hosts_agent_end.cpp); which rank was the first to fail is decided
// when everything that was on its way by then has arrived, after the longest round trip to a host.
//
// A job that goes on after failures is led by its agents (coordination/coordinator.h), which meet
// at host 0, and they say when it is over. What is done here is to begin once enough hosts have
// answered, to start lost hosts again (hosts_agent_return.cpp), to end the job when too few are
// left, and to say what all hosts say only once.
//
// Thread safety: none.

#include <chrono>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "paceline/diagnosis/failure_order.h"
#include "paceline/diagnosis/hang_inquiry.h"
#include "paceline/diagnosis/straggler_inquiry.h"
#include "paceline/hosts/host_link.h"
#include "paceline/hosts/host_return.h"
#include "paceline/hosts/hosts_entry.h"
#include "paceline/hosts/hosts_plan.h"
#include "paceline/hosts/remote_end.h"
#include "paceline/hosts/remote_input.h"
#include "paceline/hosts/shared_words.h"
#include "paceline/output/consoles.h"
#include "paceline/output/line_formatter.h"
#include "paceline/process/event_loop.h"
#include "paceline/process/supervisor.h"
#include "paceline/timeline/timeline_collection.h"

namespace paceline::launch {

class HostsAgent {
 public:
  // `plan` outlives it.
  HostsAgent(const HostsPlan& plan, AgentChannel channel);
  HostsAgent(const HostsAgent&) = delete;
  HostsAgent& operator=(const HostsAgent&) = delete;

  // The exit code of the job: 0, that of the rank that failed first, kStoppedAsAgreed when all
  // ranks of all hosts stopped so, 3 when a host could not be reached or was lost, or 128 + N when
  // signal N ended the launcher.
  int run();

 private:
  // One host as the job sees it.
  struct HostState {
    std::unique_ptr<HostLink> link;
    std::optional<LineFormatter> lines[2];  // of stdout and stderr
    LineFormatter words{""};                // of its launcher
    bool ready = false;                     // its hello was the right one
    bool running = false;                   // it has its part
    bool lost = false;                      // the job goes on, or begins, without it
    bool trying = false;                    // lost, and being started again ...
    std::optional<Deadline> answer_by;      // ... if it answers until then
    HostReturn comeback{0};
    std::optional<int> exit_code;
  };

  // With the hosts while they are there.
  void turn();
  Deadline next_deadline() const;
  void on_control();
  void on_frame(std::size_t index, const Frame& frame);
  void on_output(std::size_t index, int stream, const std::string& bytes);
  void on_words(std::size_t index, const std::string& text);
  void on_report(std::size_t index, const std::string& text);
  void on_timeline(std::size_t index, const std::string& packed);
  void pass_on_inquiries();
  void look_after_connections();
  void finish_timeline();
  bool all(bool HostState::*flag) const;
  bool all_ended() const;
  int num_hosts() const { return static_cast<int>(hosts_.size()); }
  int num_left() const;
  static std::string named(const HostState& host) { return "host " + host.link->route().name; }

  // At the start.
  void connect(std::size_t index);
  void on_hello(std::size_t index, const std::string& version);
  void begin_if_ready();
  void on_ports(const JobPorts& ports);
  void give_part(std::size_t index);
  void send_part(HostState& host, const RemoteJob& job);
  bool may_begin_without_missing() const;
  void on_late_start();
  void fail_start();

  // When something ends.
  void on_culprit(std::size_t index, const Culprit& culprit);
  FailureMark mark_of(std::size_t index, const Culprit& culprit) const;
  std::chrono::nanoseconds longest_round_trip() const;
  void decide_first();
  void on_over(int exit_code);
  void on_end(std::size_t index);
  void end_stragglers();
  void on_end_of_part(std::size_t index);
  void lose(std::size_t index, const std::string& how);
  std::string end_of_connection(const HostState& host) const;
  void fail(std::size_t index, int exit_code, const std::string& text);
  void name_silent_hosts();
  void stop_all(int signal, std::chrono::nanoseconds grace);
  void push_harder();
  void wait_for_timelines();
  int exit_code() const;

  // When lost hosts come back.
  bool plan_return(std::size_t index);
  void tend_returns();
  void try_again(std::size_t index);
  void on_return(std::size_t index);
  void on_failed_return(std::size_t index);
  void on_leads(std::size_t index, const Endpoint& meeting);
  void refuse_return(std::size_t index, const std::string& why);

  const HostsPlan& plan_;
  Fd control_;
  EventLoop loop_;
  Consoles consoles_;
  HostsEntry entry_;
  TimelineCollection timelines_;
  RemoteInput input_;
  std::vector<HostState> hosts_;
  JobPorts ports_;
  Deadline start_by_;
  Deadline alive_at_ = Deadline::after(kAliveInterval);
  bool abandoned_ = false;  // the supervisor is gone
  int stop_signal_ = 0;     // the first signal that ended the job
  SharedWords words_;
  HangInquiry inquiry_;  // these two are of a job whose agents do not meet
  StragglerInquiry stragglers_;
  int reported_generation_ = -1;       // whose first failure has been shown
  std::optional<int> over_;            // the exit code that the agents have agreed upon
  std::optional<Deadline> finish_by_;  // for all hosts, then
  struct Failure {
    std::size_t host = 0;
    Culprit culprit;
    FailureMark mark;
  };
  std::vector<Failure> failures_;  // of one generation, until it is decided which came first
  std::optional<Deadline> decide_at_;
  std::vector<std::pair<std::size_t, std::string>> held_words_;  // what was said meanwhile
  std::optional<std::size_t> leader_;                            // of agents that meet, and where
  Endpoint meeting_;
  std::optional<std::size_t> culprit_;
  int culprit_code_ = 0;
  bool stopping_ = false, pushed_ = false;
  bool at_rest_ = false;             // the user has stopped the ranks, those that come later too
  std::optional<Deadline> push_at_;  // what has not ended by then is ended harder
};

}  // namespace paceline::launch
