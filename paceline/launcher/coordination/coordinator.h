#pragma once

// The coordinator leads a job across its generations. It decides which nodes belong to the job,
// which ranks each node gets, when a generation starts, when it must stop, whether another one
// follows, and how the job ends. It lives in the process of one of the agents; the agents report to
// it and carry out its orders. It exchanges only messages with them
// (launcher/messages/agent_messages.h) and knows nothing of sockets or processes.
//
//   gathering ──all here──▶ running ──failure, loss, joining──▶ stopping ──all stopped──▶ gathering
//                              │                                   │
//                              └─all ranks ended normally─▶ over ◀─┘ no restart left
//
// Rules:
//
//   1. No message of one generation affects another generation. Reports of an older generation are
//      dropped, and a generation starts only when every member has reported that none of its ranks
//      of the previous generation is left (Stage::kReady).
//   2. A node that cannot join now waits as a spare if it may replace a lost node; otherwise it is
//      refused. If the job has all its nodes, the spare waits until a node is lost or join_timeout
//      has passed. If another node has the same node rank, the spare waits only for loss_timeout.
//   3. In a job of logical shards (engine/core/logical_shards.h) a generation takes as many nodes
//      as possible such that the shards can be divided among the ranks of these nodes. The other
//      nodes wait as spares, without a time limit.
//   4. A generation that fails has one cause: the loss of a host, if one is lost before the last
//      rank has ended, and otherwise the first failure of a rank (diagnosis/failure_report.h).
//      After the first report of a failure, the coordinator waits for other reports that may be
//      under way; then, or when the last rank has ended, it decides which failure was the first.
//   5. After a network outage the job may have two coordinators, each with some of its nodes. A
//      coordinator with fewer nodes than it needs asks the agents that may lead the job elsewhere
//      (others_to_ask). It gives way to a coordinator that has enough nodes, or more nodes than it
//      has itself, or the same number of nodes and the lower endpoint. The coordinator that is
//      asked decides, so the two never both give way.
//   6. A deserter is an agent that has been in a generation and gives up on this coordinator. Once
//      the deserters are enough for a job of their own, the job continues elsewhere.
//
// Thread safety: none. Callers pass the time, which they read from AwakeClock.

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "paceline/engine/core/awake_clock.h"
#include "paceline/launcher/coordination/restart_policy.h"
#include "paceline/launcher/diagnosis/hang_inquiry.h"
#include "paceline/launcher/diagnosis/straggler_watch.h"
#include "paceline/launcher/messages/agent_messages.h"

namespace paceline::launcher {

struct CoordinatorSettings {
  JobTerms terms;
  // join_timeout: how long the agents that the job needs may take to arrive. last_call_timeout: how
  // long a job of MIN:MAX nodes waits for more nodes when MIN have arrived for the first time.
  std::chrono::nanoseconds join_timeout = std::chrono::minutes(10);
  std::chrono::nanoseconds last_call_timeout = std::chrono::seconds(3);
  // How long the ranks of a node may take to end, SIGKILL included; then the node counts as lost.
  std::chrono::nanoseconds stop_timeout = std::chrono::minutes(1);
  // How long the loss of a node may remain unnoticed.
  std::chrono::nanoseconds loss_timeout = std::chrono::seconds(4);
  // When this many nodes have joined, the first generation does not wait for last_call_timeout.
  int expected_nodes = 1;
  Endpoint leader;  // where agents of other nodes reach this coordinator
  // After a take-over: the number of the first generation, why that generation is started, and
  // where agents that do not report to this coordinator may lead the job.
  int first_generation = 0;
  std::string first_note;
  std::vector<Endpoint> stand_ins;
};

class Coordinator {
 public:
  using Agent = int;  // the number that the owner of the connections gave to an agent
  using Moment = AwakeClock::time_point;

  // Begins to gather nodes at `now`.
  Coordinator(CoordinatorSettings settings, Moment now);

  // Processes a report. Error(kCorrupt) if its contents are invalid.
  void receive(Agent from, const Report& report, Moment now);
  // Sets how long a report of any agent may take to arrive; 0 before the first call.
  void expect_reports_within(std::chrono::nanoseconds time) { report_time_ = time; }
  // Call when an agent has been silent for too long, or when its connection has ended; `cause`
  // describes how that was noticed.
  void lose(Agent agent, const std::string& cause, Moment now);
  // Call when next_deadline() has passed.
  void tick(Moment now);
  Moment next_deadline() const;

  // The host of `agent`; nullopt if the agent has not been in a generation, or if over(). Only an
  // agent that has been in a generation knows the agents that may lead next, and so may desert.
  std::optional<std::string> follower(Agent agent) const;
  // Records `agent` as a deserter. Returns whether the deserters since the last generation began
  // are enough for a job of their own: then this coordinator no longer leads the job.
  bool add_deserter(Agent agent);

  // Other agents that may lead the job. Empty unless the job is gathering and has too few nodes.
  std::vector<Endpoint> others_to_ask() const;
  Looking question_to(const Endpoint& other) const;
  // Call when another coordinator has answered that the job continues at `leader`. Sends all agents
  // to `leader`, unless this one now has enough nodes, or has just told another to give way.
  void follow(const Endpoint& leader, Moment now);

  // Returns the orders since the last call. Deliver them in this sequence.
  std::vector<Mail> take_mail() { return std::exchange(mail_, {}); }
  // Whether a generation is being stopped.
  bool stopping() const { return phase_ == Phase::kStopping; }
  // Whether the job has ended, or continues under another coordinator.
  bool over() const { return phase_ == Phase::kOver; }

 private:
  enum class Phase { kGathering, kRunning, kStopping, kOver };
  //   ready ──start──▶ running ──all ranks finished──▶ finished
  //     ▲ └──────stopped─────┴─────────stopped─────────────┘   running ──Leaving──▶ leaving
  enum class Stage {
    kReady,     // no rank runs on the node, so a generation can start
    kRunning,   // the node's ranks run
    kFinished,  // all ranks of the node have ended without a failure
    kLeaving,   // the node's ranks are being stopped; then the node leaves the job
  };
  struct Member {
    Joining joining;
    Stage stage = Stage::kReady;
    std::int64_t arrival = 0;
    int node_rank = -1;      // the node's rank in the last generation; -1: none since admission
    bool work_done = false;  // only ranks of serving roles (--until) still run on the node
  };
  // A node that waits because it cannot join now.
  struct Spare {
    Joining joining;
    Moment until;  // when the node is refused
  };
  // The first failure of a rank in this generation, as far as is known.
  struct FirstFailure {
    Agent agent;
    Failure failure;
    Moment decided_at;  // from then on, no other failure replaces this one
  };

  void join(Agent from, const Joining& joining, Moment now);
  void answer(Agent from, const Looking& looking, Moment now);
  const JobTerms& terms() const { return settings_.terms; }
  bool has_enough() const { return num_members() >= terms().min_nodes; }
  // Why a node is never admitted, and why it is not admitted now; nullopt if it is admitted.
  std::optional<std::string> refusal_of(const Joining& joining) const;
  std::optional<std::string> obstacle_to(const Joining& joining) const;
  bool rank_is_taken(const Joining& joining) const;
  // Whether a lost node may be replaced: always while nodes gather, later only if the job may
  // restart.
  bool may_need_spares() const { return phase_ == Phase::kGathering || terms().may_restart(); }
  bool ending() const;
  void admit(Agent agent, const Joining& joining);
  void keep_as_spare(Agent agent, const Joining& joining, const std::string& obstacle, Moment now);
  void admit_spares();
  void dismiss_spares(Moment now);
  std::size_t num_fitting(const std::vector<int>& ranks_of_nodes) const;
  bool would_enlarge_job(const Joining& joining) const;
  bool keep_fitting_members();
  void refuse(Agent agent, const std::string& reason);
  void fail(Agent from, const RankFailure& report, Moment now);
  void finish(Agent from, const Finished& finished);
  void finish_work(Agent from, const WorkDone& done);
  void end_if_finished();
  void change(const std::string& what, Agent except, Moment now);
  void stopped(Agent from, const Stopped& report, Moment now);
  void leave(Agent from, const Leaving& leaving, Moment now);
  void show_first_failure();
  void stop_all(Agent except, const StopOrder& order, Moment now);
  void lose_the_stuck(Moment now);
  void settle(Moment now);
  void gather(Moment now, std::string note);
  void start_if_possible(Moment now);
  void start(Moment now);
  int num_ranks() const;
  bool roles_fit() const;
  Roles roles_of(const std::vector<Agent>& order) const;
  std::vector<Agent> seats() const;
  void end_all(const EndOrder& order, Agent except = -1);
  void begin_inquiries();
  void pass_on_inquiries();
  void send(Agent to, Order order) { mail_.emplace_back(to, std::move(order)); }
  int num_members() const { return static_cast<int>(members_.size()); }
  void remind(Moment now);
  std::string hosts_here() const;
  std::string missing() const;

  const CoordinatorSettings settings_;
  RestartPolicy policy_;
  Phase phase_ = Phase::kGathering;
  std::map<Agent, Member> members_;
  std::map<Agent, Spare> spares_;  // in order of arrival: agents are numbered as they connect
  std::vector<Mail> mail_;         // orders for the next take_mail()
  HangInquiry inquiry_;            // about hangs of the running generation
  StragglerInquiry stragglers_;    // about stragglers of the running generation
  std::int64_t num_arrivals_ = 0;
  int generation_ = 0;   // number of the running or stopping generation, or of the next one
  std::string note_;     // why the next generation is started
  Moment gather_until_;  // when join_timeout ends
  Moment remind_at_;     // when to print which nodes are missing
  Moment stop_until_;    // when stop_timeout ends, while stopping
  // When last_call_timeout ends; set before the first generation, once enough nodes have joined.
  std::optional<Moment> last_call_;
  std::optional<Moment> pause_until_;
  std::chrono::nanoseconds report_time_{};
  // Why this generation is being stopped: the failure of a rank, the loss of a host, or neither.
  std::optional<FirstFailure> first_failure_;
  std::optional<Failure> lost_host_;
  std::string change_;                  // which node joined or left, if nothing failed
  bool shown_ = false;                  // an agent has been ordered to show the first failure
  std::chrono::milliseconds lived_{};   // how long the stopping generation lived
  std::optional<std::uint64_t> steps_;  // steps of that generation; nullopt: not counted
  bool stopped_as_agreed_ = false;      // ranks of this generation ended by an agreed stop
  std::vector<Endpoint> stand_ins_;     // where agents of the last generation listen as stand-ins
  std::set<Agent> deserters_;           // agents that deserted since the last generation began
  Moment called_until_{};  // until then, agents of a coordinator that gave way may arrive
};

}  // namespace paceline::launcher
