#pragma once

// Leads a job across its generations: which nodes belong to it, which ranks each gets, when a
// generation starts, when it has to stop, whether there is another one, and how the job ends. One
// of the agents' processes holds it; the agents report to it and carry out its orders. It talks to
// them by messages alone (launcher/messages/agent_messages.h) and knows nothing of sockets or
// processes.
//
//   gathering ──all there──▶ running ──failure, loss, newcomer──▶ stopping ──all stopped──▶ gathering
//                               │                                    │
//                               └─all ranks ended in order─▶ over ◀──┘ no restart left
//
// A node that finds its place taken waits as a spare where it may still be needed: one too many
// until a node is lost, but no longer than join_timeout; one with another's node rank as long as
// the loss of that one may go unnoticed. In a job of logical shards (engine/core/logical_shards.h)
// a generation is of the most nodes whose ranks fit them, and the others wait, however long.
//
// Nothing of one generation reaches another: reports of an older one are dropped, and a generation
// starts only when every agent has said that nothing of the one before it is left.
//
// A gap in the network may leave the job with two coordinators, each with some of its nodes. One
// that has fewer than it needs asks the other agents that may lead the job (others_to_ask()), and
// gives way to one that has more nodes, or runs a generation. The one that was asked decides, so
// that never both give way.
//
// Which failure came first: launcher/diagnosis/failure_report.h; a lost host counts more than any
// rank. All that is reported until the last rank has ended takes part; but whose report is shown is
// decided when everything that was on its way at the first one has arrived.
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
  std::string version;  // of Paceline
  std::string run_id;
  int min_nodes = 1, max_nodes = 1;
  std::int64_t logical_shards = 0;  // 0: none
  Roles roles{};                    // of all ranks; empty: each node brings its own
  RestartLimits restarts;
  // How long enough agents may take to arrive, and how long a job of MIN:MAX nodes waits for more
  // once MIN are there, the first time.
  std::chrono::nanoseconds join_timeout = std::chrono::minutes(10);
  std::chrono::nanoseconds last_call_timeout = std::chrono::seconds(3);
  // How long the ranks of a node may take to end, SIGKILL included; then it is lost to the job.
  std::chrono::nanoseconds stop_timeout = std::chrono::minutes(1);
  // How long the loss of a node may go unnoticed.
  std::chrono::nanoseconds loss_timeout = std::chrono::seconds(4);
  // With so many the first generation starts without a last call.
  int expected_nodes = 1;
  Endpoint leader;           // where agents of other nodes reach it
  int first_generation = 0;  // above 0 after a take-over
  std::string first_note;    // why it is made, then
  // Then: where agents may lead the job that do not report here.
  std::vector<Endpoint> stand_ins;
};

class Coordinator {
 public:
  using Agent = int;  // a number that the owner of the connections gave to one
  using Moment = AwakeClock::time_point;

  // Gathers from `now` on.
  Coordinator(CoordinatorSettings settings, Moment now);

  // Error(kCorrupt) when what a report carries makes no sense.
  void receive(Agent from, const Report& report, Moment now);
  // What a report may take to arrive, from any agent. At first: no time.
  void expect_reports_within(std::chrono::nanoseconds time) { report_time_ = time; }
  // The agent has been silent for too long, or its connection has ended; `cause` says how that was
  // noticed.
  void lose(Agent agent, const std::string& cause, Moment now);
  // Call when next_deadline() has passed.
  void tick(Moment now);
  Moment next_deadline() const;

  // The host of an agent that has been in a generation, and so knows which agent to follow instead
  // of this coordinator. Nothing for others, and once the job is over.
  std::optional<std::string> follower(Agent agent) const;
  // An agent that has been in a generation has given this coordinator up. True when as many agents
  // have done so since the last generation began as make a job of their own: then this is not the
  // job's coordinator any more.
  bool has_lost_its_job_with(Agent agent);

  // The agents that may lead the job elsewhere, while too few nodes are here; mostly none.
  std::vector<Endpoint> others_to_ask() const;
  Looking question_to(const Endpoint& other) const;
  // Takes the answer that the job goes on at `leader`: sends all agents there, unless things have
  // changed here.
  void follow(const Endpoint& leader, Moment now);

  // Orders since the last call, to be delivered in this order.
  std::vector<Mail> take_mail() { return std::exchange(mail_, {}); }
  // A generation is being stopped.
  bool stopping() const { return phase_ == Phase::kStopping; }
  // Every agent has been ordered to end.
  bool over() const { return phase_ == Phase::kOver; }
  int num_restarts() const { return policy_.num_restarts(); }

 private:
  enum class Phase { kGathering, kRunning, kStopping, kOver };
  //   ready ──start──▶ running ──all ranks in order──▶ finished
  //     ▲ └──────stopped─────┴─────────stopped─────────────┘   running ──taken away──▶ leaving
  enum class Stage {
    kReady,  // nothing runs there; can start
    kRunning,
    kFinished,
    kLeaving,  // is being stopped, and then gone
  };
  struct Member {
    Joining joining;
    Stage stage = Stage::kReady;
    std::int64_t arrival = 0;
    int node_rank = -1;      // in the last generation
    bool work_done = false;  // in this one, but for ranks that serve
  };
  // Came too early: another node has its place.
  struct Spare {
    Joining joining;
    Moment until;
  };
  // The first failure of a rank in this generation, as far as is known.
  struct FirstFailure {
    Agent agent;
    Failure failure;
    Moment decided_at;  // then it is the first
  };

  void join(Agent from, const Joining& joining, Moment now);
  void answer(Agent from, const Looking& looking, Moment now);
  bool has_enough() const { return num_members() >= settings_.min_nodes; }
  // Why not, where it is not to be admitted: never, or for now.
  std::optional<std::string> refusal_of(const Joining& joining) const;
  std::optional<std::string> obstacle_to(const Joining& joining) const;
  bool rank_is_taken(const Joining& joining) const;
  bool may_need_spares() const;
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
  void start();
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
  std::map<Agent, Spare> spares_;  // none of them fits; agents are numbered as they come
  std::vector<Mail> mail_;
  HangInquiry inquiry_;  // these two are of the generation that runs
  StragglerInquiry stragglers_;
  std::int64_t num_arrivals_ = 0;
  int generation_ = 0;               // that runs or stops, or comes next while gathering
  std::string note_;                 // why the next generation is made
  Moment gather_until_;              // join_timeout
  Moment remind_at_;                 // of the nodes that are missing
  Moment stop_until_;                // stop_timeout, while stopping
  std::optional<Moment> last_call_;  // while gathering the first time, once enough are there
  std::optional<Moment> pause_until_;
  std::chrono::nanoseconds report_time_{};
  // Why this generation is being stopped: the failure of a rank, the loss of a host, or neither.
  std::optional<FirstFailure> first_failure_;
  std::optional<Failure> lost_host_;
  std::string change_;                  // which node joined or left, then
  bool shown_ = false;                  // the report of the first failure
  std::chrono::milliseconds lived_{};   // of the generation that stops
  std::optional<std::uint64_t> steps_;  // that it made, where that is counted
  bool stopped_as_agreed_ = false;      // ranks of this generation did, of themselves
  std::vector<Endpoint> stand_ins_;     // of the last generation's nodes
  std::set<Agent> deserters_;           // that gave this coordinator up since that began
  Moment called_until_{};               // another was told to come here, which may take so long
};

}  // namespace paceline::launcher
