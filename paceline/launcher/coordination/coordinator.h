#pragma once

// Leads a job across its generations: decides which nodes belong to it, which ranks each gets, when
// a generation starts, when it has to stop, whether there is another one, and how the job ends. One
// of the agents' processes holds it; the agents report to it and carry out its orders. It talks to
// them by messages alone (launcher/messages/agent_messages.h) and knows nothing of sockets or
// processes.
//
//   gathering ──all there──▶ running ──failure, loss, newcomer──▶ stopping ──all stopped──▶ gathering
//                               │                                    │
//                               └─all ranks ended in order─▶ over ◀──┘ no restart left
//
// Rules:
//
//   1. Nothing of one generation reaches another. Reports of an older one are dropped, and a
//      generation starts only when every member has reported that nothing of the one before it is
//      left (Stage::kReady).
//   2. A node that finds its place taken waits as a spare while it may still be needed: a node too
//      many, until a node is lost or join_timeout is over; a node with another's node rank, as long
//      as the loss of that one may go unnoticed.
//   3. In a job of logical shards (engine/core/logical_shards.h) a generation has the most nodes
//      whose ranks divide them; the others wait as spares without a limit.
//   4. The cause of an end is the loss of a host, if there was one, otherwise the first failure of
//      a rank (launcher/diagnosis/failure_report.h). All reports until the last rank has ended
//      count for the cause. But the rank whose report is shown is chosen as soon as all reports
//      have arrived that were on their way at the first one.
//   5. A gap in the network may leave the job with two coordinators, each with some of its nodes.
//      One with fewer nodes than it needs asks the agents that may lead the job elsewhere
//      (others_to_ask), and gives way to a coordinator that has enough, or more nodes, or as many
//      and the lower endpoint. The one that was asked decides, so both never give way.
//   6. An agent that has been in a generation and gives this coordinator up is a deserter. Enough
//      deserters for a job of their own mean that the job goes on elsewhere.
//
// Thread safety: none. Time comes in as an argument, from this host's monotonic clock.

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
  // How long enough agents may take to arrive, and how long a job of MIN:MAX nodes waits for more
  // once MIN are there, the first time.
  std::chrono::nanoseconds join_timeout = std::chrono::minutes(10);
  std::chrono::nanoseconds last_call_timeout = std::chrono::seconds(3);
  // How long the ranks of a node may take to end, SIGKILL included; then it is lost to the job.
  std::chrono::nanoseconds stop_timeout = std::chrono::minutes(1);
  // For how long the loss of a node may go unnoticed.
  std::chrono::nanoseconds loss_timeout = std::chrono::seconds(4);
  // With so many nodes the first generation starts without a last call.
  int expected_nodes = 1;
  Endpoint leader;  // where agents of other nodes reach it
  // After a take-over: the number of the first generation, why there is one, and where agents that
  // do not report here may lead the job.
  int first_generation = 0;
  std::string first_note;
  std::vector<Endpoint> stand_ins;
};

class Coordinator {
 public:
  using Agent = int;  // the number that the owner of the connections gave to an agent
  using Moment = AwakeClock::time_point;

  // Gathers from `now` on.
  Coordinator(CoordinatorSettings settings, Moment now);

  // Error(kCorrupt) when the contents of a report make no sense.
  void receive(Agent from, const Report& report, Moment now);
  // How long a report may be on its way, from any agent. At first: no time.
  void expect_reports_within(std::chrono::nanoseconds time) { report_time_ = time; }
  // The agent has been silent for too long, or its connection has ended; `cause` says how that was
  // noticed.
  void lose(Agent agent, const std::string& cause, Moment now);
  // Call when next_deadline() has passed.
  void tick(Moment now);
  Moment next_deadline() const;

  // The host of an agent that has been in a generation, and so knows which agent to follow instead
  // of this coordinator. Nothing for other agents, and once the job is over.
  std::optional<std::string> follower(Agent agent) const;
  // Notes a deserter. True when since the last generation began so many agents have deserted that
  // they make a job of their own: then this is not the job's coordinator any more.
  bool has_lost_its_job_with(Agent agent);

  // The agents that may lead the job elsewhere, while too few nodes are here; usually none.
  std::vector<Endpoint> others_to_ask() const;
  Looking question_to(const Endpoint& other) const;
  // Acts on the answer that the job goes on at `leader`: sends all agents there, unless enough
  // nodes have arrived here meanwhile.
  void follow(const Endpoint& leader, Moment now);

  // Orders since the last call, to be delivered in this order.
  std::vector<Mail> take_mail() { return std::exchange(mail_, {}); }
  // Whether a generation is being stopped.
  bool stopping() const { return phase_ == Phase::kStopping; }
  // Whether every agent has been ordered to end.
  bool over() const { return phase_ == Phase::kOver; }

 private:
  enum class Phase { kGathering, kRunning, kStopping, kOver };
  //   ready ──start──▶ running ──all ranks in order──▶ finished
  //     ▲ └──────stopped─────┴─────────stopped─────────────┘   running ──taken away──▶ leaving
  enum class Stage {
    kReady,     // no rank runs there, so a generation can start
    kRunning,   // its ranks run
    kFinished,  // its ranks have ended in order
    kLeaving,   // its ranks are being stopped; then the node leaves the job
  };
  struct Member {
    Joining joining;
    Stage stage = Stage::kReady;
    std::int64_t arrival = 0;
    int node_rank = -1;      // in the last generation
    bool work_done = false;  // in this generation only ranks that serve still run
  };
  // A node that waits, because another node has its place.
  struct Spare {
    Joining joining;
    Moment until;
  };
  // The first failure of a rank in this generation, as far as is known.
  struct FirstFailure {
    Agent agent;
    Failure failure;
    Moment decided_at;  // from then on it counts as the first
  };

  void join(Agent from, const Joining& joining, Moment now);
  void answer(Agent from, const Looking& looking, Moment now);
  const JobTerms& terms() const { return settings_.terms; }
  bool has_enough() const { return num_members() >= terms().min_nodes; }
  // Why a node is never admitted, and why it is not admitted now; nothing when it is.
  std::optional<std::string> refusal_of(const Joining& joining) const;
  std::optional<std::string> obstacle_to(const Joining& joining) const;
  bool rank_is_taken(const Joining& joining) const;
  // Before the job begins a lost node is replaced, afterwards where the job can go on.
  bool may_need_spares() const { return phase_ == Phase::kGathering || terms().may_restart(); }
  bool ending() const;
  void admit(Agent agent, const Joining& joining);
  void keep_as_spare(Agent agent, const Joining& joining, const std::string& obstacle, Moment now);
  void admit_spares();
  void dismiss_spares(Moment now);
  std::size_t num_fitting(const std::vector<int>& ranks_of_nodes) const;
  bool makes_it_larger(const Joining& joining) const;
  bool take_those_that_fit();
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
  std::map<Agent, Spare> spares_;  // in the order of arrival, in which agents are numbered
  std::vector<Mail> mail_;         // orders that wait for take_mail()
  HangInquiry inquiry_;            // about the generation that runs, as the next one
  StragglerInquiry stragglers_;
  std::int64_t num_arrivals_ = 0;
  int generation_ = 0;               // the one that runs or stops; while gathering, the next one
  std::string note_;                 // why the next generation is made
  Moment gather_until_;              // join_timeout
  Moment remind_at_;                 // when to print which nodes are missing
  Moment stop_until_;                // stop_timeout, while stopping
  std::optional<Moment> last_call_;  // in the first gathering, once enough nodes are there
  std::optional<Moment> pause_until_;
  std::chrono::nanoseconds report_time_{};
  // Why this generation is being stopped: the failure of a rank, the loss of a host, or neither.
  std::optional<FirstFailure> first_failure_;
  std::optional<Failure> lost_host_;
  std::string change_;                  // which node joined or left, if neither
  bool shown_ = false;                  // the first failure has been chosen for show
  std::chrono::milliseconds lived_{};   // how long the generation that stops has lived
  std::optional<std::uint64_t> steps_;  // how many it made, where that is counted
  bool stopped_as_agreed_ = false;      // ranks of this generation have, by themselves
  std::vector<Endpoint> stand_ins_;     // of the last generation's nodes
  std::set<Agent> deserters_;           // since the last generation began
  Moment called_until_{};               // by when the agents of a coordinator that gives way arrive
};

}  // namespace paceline::launcher
