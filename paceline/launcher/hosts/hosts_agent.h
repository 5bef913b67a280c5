#pragma once

// The agent (launcher/process/supervisor.h) of `paceline run --hosts`: starts a job on several
// hosts and runs until the job has ended on all of them. This header also declares the job's
// plan, and the entry through which `paceline ps` and `paceline stop` find the job on the
// launcher's machine.

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <ctime>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <sys/types.h>
#include <unistd.h>

#include "paceline/engine/core/deadline.h"
#include "paceline/launcher/hosts/host_link.h"
#include "paceline/launcher/hosts/remote_end.h"
#include "paceline/launcher/job_timeline/job_timeline.h"
#include "paceline/launcher/messages/job_socket.h"
#include "paceline/launcher/messages/remote_frames.h"
#include "paceline/launcher/output/console.h"
#include "paceline/launcher/output/line_formatter.h"
#include "paceline/launcher/process/event_loop.h"
#include "paceline/launcher/process/supervisor.h"

namespace paceline::launcher {

struct HostsJob {
  std::string run_id;
  std::vector<std::string> command;
  std::vector<std::string> hosts;  // as the user named them
  int world_size = 1;
};

// The job's socket (launcher/messages/job_socket.h) on the machine of its launcher, even if no rank
// runs there: `paceline ps` shows the job there, and `paceline stop` ends it on all hosts.
//
// Thread safety: none; everything happens in handlers of the loop.
class HostsJobSocket {
 public:
  // `loop` must outlive this object.
  HostsJobSocket(EventLoop& loop, HostsJob job, const JobSocket::Say& say);

 private:
  void answer(const JobRequest& request) const;
  std::string description() const;

  const HostsJob job_;
  const pid_t supervisor_ = getppid();
  const std::int64_t started_ = std::time(nullptr);  // seconds since 1970
  JobSocket socket_;
};

// The plan of `paceline run --hosts`.
struct HostsPlan {
  struct Part {
    HostRoute route;
    RemoteJob job;
  };
  std::vector<Part> parts;    // in the order of hosts
  HostsJob job;               // what HostsJobSocket shows
  std::string version;        // the version of Paceline that every host must have
  std::string program_hint;   // tells the user how to name paceline's path on the hosts
  std::string timeline;       // path of the trace of all hosts' ranks; empty: none
  bool prefix_lines = false;  // output of ranks arrives as lines that name host and rank
  int min_hosts = 1;          // the job continues as long as this many hosts are left
  int host_tries = 0;         // how many times a lost host is started again
  std::chrono::nanoseconds start_timeout = std::chrono::seconds(30);
  std::chrono::nanoseconds shutdown_timeout = std::chrono::seconds(10);
};

// Decides when to try again to start a lost host's part of a job: after 1 s, 2 s, 4 s, ... up to a
// minute, and at most `most_tries` times. A host that has been back for ten minutes gets all its
// tries again. Callers pass the time.
class HostRetrySchedule {
 public:
  using Moment = Deadline::Clock::time_point;

  explicit HostRetrySchedule(int most_tries) : most_tries_(most_tries), tries_left_(most_tries) {}

  // Call when the host is lost, or could not be reached again. Plans the next try; returns false if
  // none is left.
  bool plan(Moment now);
  // Call when the host must not be tried any more.
  void give_up();
  // Call when the host's part has begun again.
  void back(Moment now);

  // The moment of the next try; nullopt if none is planned.
  std::optional<Moment> next() const { return next_; }
  bool due(Moment now) const { return next_ && *next_ <= now; }
  // Call when the planned try begins.
  void begin() { next_.reset(); }

 private:
  int most_tries_, tries_left_;
  std::chrono::seconds pause_ = kFirstPause;
  std::optional<Moment> next_;
  std::optional<Moment> back_since_;

  static constexpr std::chrono::seconds kFirstPause{1}, kLongestPause{60};
  static constexpr std::chrono::minutes kLongLife{10};
};

// The agent of --hosts. It has one thread, with one event loop over the connections to the hosts.
//
// Until start_timeout, no host starts a rank before every host has answered. After that time, the
// job begins without the missing hosts if host 0 and enough hosts have answered. Host 0 gets its
// part first, reserves and reports the port where the agents meet; then the others get their parts.
//
// From then on the agents lead the job (launcher/coordination/coordinator.h) and report when it is
// over, and with which exit code; this process prints their messages. It makes only the decisions
// that no other process can make: whether hosts can be started, and whether lost hosts can be
// started again. It ends a job for which too few hosts are left (hosts_agent_end.cpp).
//
// Thread safety: none.
class HostsAgent {
 public:
  // `plan` must outlive the agent.
  HostsAgent(const HostsPlan& plan, AgentChannel channel);
  HostsAgent(const HostsAgent&) = delete;
  HostsAgent& operator=(const HostsAgent&) = delete;

  // Runs the job and returns its exit code: the code that its agents reported, kStoppedAsAgreed
  // when the ranks of all remaining hosts ended by an agreed stop, or 128 + N when signal N ended
  // the launcher. When too few hosts are left, the code with which the last lost host ended, or 3
  // if that host reported none. Also 3 instead of 0 when output of the ranks was lost.
  int run();

 private:
  //   connecting ──hello──▶ ready ──its part──▶ running ──end──▶ lost ──try──▶ returning
  //       └──end, or too late──────────────────────────────────▶  ▲ └──end or no answer──┘  │hello
  //                                             running ◀──its part── back ◀────────────────┘
  enum class Stage {
    kConnecting,
    kReady,      // has answered, and waits for the other hosts
    kRunning,    // has got its part of the job
    kLost,       // the job begins or continues without the host
    kReturning,  // was lost, and is being started again
    kBack,       // has answered again, and waits until an agent leads
  };

  // How the hosts are being ended; push_harder() moves on to the next value.
  enum class Ending { kNot, kAsked, kKilled, kCut };
  static constexpr std::array kHarder = {Ending::kAsked, Ending::kKilled, Ending::kCut,
                                         Ending::kCut};

  // One host as the job sees it.
  struct HostState {
    std::unique_ptr<HostLink> link;
    std::optional<LineFormatter> lines[2];  // for stdout and stderr
    LineFormatter words{""};                // for the messages of its agent
    Stage stage = Stage::kConnecting;
    Deadline answer_by = Deadline::never();  // while kReturning: when its hello must have arrived
    HostRetrySchedule comeback{0};
    std::optional<int> exit_code;
    std::optional<Endpoint> led_at;  // where this host's agent led the job

    bool lost() const { return stage >= Stage::kLost; }
    bool trying() const { return stage > Stage::kLost; }
  };

  // Called while hosts are connected.
  void turn();
  Deadline next_deadline() const;
  void on_control();
  void on_frame(std::size_t index, const Frame& frame);
  void on_output(std::size_t index, int stream, const std::string& bytes);
  void on_words(std::size_t index, const Frame& frame);
  void on_timeline(std::size_t index, const std::string& packed);
  void look_after_connections();
  void finish_timeline();
  // Whether every host that is not lost has answered, and whether each of them has its part.
  bool all_ready() const { return none_in(Stage::kConnecting); }
  bool begun() const { return all_ready() && none_in(Stage::kReady); }
  bool none_in(Stage stage) const;
  bool stopping() const { return ending_ != Ending::kNot; }
  bool all_ended() const;
  int num_hosts() const { return static_cast<int>(hosts_.size()); }
  int num_left() const;
  static std::string named(const HostState& host) { return "host " + host.link->route().name; }

  // Called at the start of the job.
  void connect(std::size_t index);
  void on_hello(std::size_t index, const std::string& version);
  void begin_if_ready();
  void on_port(const std::string& payload);
  void give_part(std::size_t index);
  void send_part(HostState& host, const RemoteJob& job);
  bool may_begin_without_missing() const;
  void on_late_start();
  void fail_start();

  // Called when a connection, a host or the job ends.
  void on_over(int exit_code);
  void on_end(std::size_t index);
  void end_stragglers();
  void lose(std::size_t index, const std::string& how);
  std::string end_of_connection(const HostState& host) const;
  void fail(std::size_t index, int exit_code, const std::string& text);
  void name_silent_hosts();
  void stop_all(int signal, std::chrono::nanoseconds grace);
  void push_harder();
  void wait_for_timelines();
  int exit_code() const;

  // Called when lost hosts are started again.
  bool plan_return(std::size_t index);
  void tend_returns();
  void try_again(std::size_t index);
  void on_return(std::size_t index);
  void on_failed_return(std::size_t index);
  void on_leads(std::size_t index, const Endpoint& meeting);
  void refuse_return(std::size_t index, const std::string& why);

  const HostsPlan& plan_;
  const AgentChannel channel_;  // without stdin_fd, which input_ owns
  EventLoop loop_;
  Consoles consoles_;
  HostsJobSocket entry_;
  TimelineCollection timelines_;
  RemoteInput input_;
  std::vector<HostState> hosts_;
  std::optional<std::uint16_t> port_;  // the port of host 0 where the agents meet, once reported
  Deadline start_by_;
  Deadline alive_at_ = Deadline::after(kAliveInterval);
  bool abandoned_ = false;             // the supervisor has ended, or SIGINT skips the last output
  int stop_signal_ = 0;                // the first signal that asked the job to end; 0: none
  std::optional<int> over_;            // the exit code of the job, once the agents have reported it
  std::optional<Deadline> finish_by_;  // when all hosts must have ended; set with over_
  std::optional<std::size_t> leader_;  // the host whose agent leads the job
  Endpoint meeting_;                   // where that agent leads the job
  std::optional<std::size_t> culprit_;  // the host whose loss or failure ends the job
  int culprit_code_ = 0;
  Ending ending_ = Ending::kNot;
  bool at_rest_ = false;             // the user has stopped the ranks; later ranks stop as well
  std::optional<Deadline> push_at_;  // while stopping(): when to call push_harder()
};

}  // namespace paceline::launcher
