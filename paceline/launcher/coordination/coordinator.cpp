#include "paceline/launcher/coordination/coordinator.h"

#include <algorithm>
#include <csignal>
#include <limits>
#include <tuple>
#include <utility>

#include <fmt/ranges.h>

#include "paceline/engine/core/check.h"
#include "paceline/engine/core/error.h"
#include "paceline/engine/core/error_text.h"
#include "paceline/engine/core/log.h"
#include "paceline/engine/core/logical_shards.h"
#include "paceline/launcher/diagnosis/failure_report.h"
#include "paceline/launcher/process/process.h"

namespace paceline::launcher {
namespace {

using namespace std::chrono_literals;

constexpr auto kFirstReminder = 5s, kNextReminder = 30s;
// How long this process may take to read a report that has arrived.
constexpr auto kDelayHere = 20ms;
// A signal that makes a host leave is often sent to all hosts, for example after Ctrl-C at the
// launcher of --hosts or at the end of a batch job. The other hosts may get the signal up to this
// much later; until then no generation is started.
constexpr auto kSignalDelay = 1s;

}  // namespace

Coordinator::Coordinator(CoordinatorSettings settings, Moment now)
    : settings_(std::move(settings)),
      policy_(settings_.terms.restarts, now),
      generation_(settings_.first_generation),
      note_(settings_.first_note),
      gather_until_(now + settings_.join_timeout),
      remind_at_(now + kFirstReminder),
      stand_ins_(settings_.stand_ins) {
  // The loss of the previous coordinator counts like the loss of any other node: it uses up a
  // restart if too few nodes are left.
  const bool takes_over = settings_.first_generation > 0;
  if (takes_over && settings_.expected_nodes < terms().min_nodes) policy_.count_restart(now);
}

void Coordinator::receive(Agent from, const Report& report, Moment now) {
  if (const auto* joining = std::get_if<Joining>(&report)) return join(from, *joining, now);
  if (const auto* looking = std::get_if<Looking>(&report)) return answer(from, *looking, now);
  if (!members_.contains(from) || phase_ == Phase::kOver) return;
  if (const auto* failure = std::get_if<RankFailure>(&report)) fail(from, *failure, now);
  if (const auto* finished = std::get_if<Finished>(&report)) finish(from, *finished);
  if (const auto* done = std::get_if<WorkDone>(&report)) finish_work(from, *done);
  if (const auto* left = std::get_if<Stopped>(&report)) stopped(from, *left, now);
  if (const auto* leaving = std::get_if<Leaving>(&report)) leave(from, *leaving, now);
  if (phase_ != Phase::kRunning) return;
  if (const auto* where = std::get_if<Whereabouts>(&report)) inquiry_.take(from, *where, now);
  if (const auto* shares = std::get_if<Shares>(&report)) stragglers_.take(from, *shares);
  pass_on_inquiries();
}

// --- What agents report ---

void Coordinator::join(Agent from, const Joining& joining, Moment now) {
  if (const auto refusal = refusal_of(joining)) {
    log::warning(fmt::format("a node of host {} was refused: {}", joining.host, *refusal));
    return refuse(from, *refusal);
  }
  if (members_.contains(from) || spares_.contains(from)) return refuse(from, "it has joined twice");
  if (const auto obstacle = obstacle_to(joining)) {
    return keep_as_spare(from, joining, *obstacle, now);
  }
  admit(from, joining);
  if (phase_ == Phase::kGathering) return start_if_possible(now);
  if (!ending()) change(fmt::format("host {} joins", joining.host), from, now);
}

void Coordinator::fail(Agent from, const RankFailure& report, Moment now) {
  if (report.generation != generation_ || phase_ == Phase::kGathering) return;
  const Failure& failure = report.failure;
  if (!first_failure_) {
    const bool alone = num_members() == 1;
    first_failure_ = {from, failure, now + (alone ? 0ns : report_time_ + kDelayHere)};
  } else if (!shown_ && failed_before(failure, first_failure_->failure)) {
    first_failure_ = {from, failure, first_failure_->decided_at};
  }
  stop_all(from, {failure.cause, Failure::Kind::kRank}, now);
}

void Coordinator::finish(Agent from, const Finished& finished) {
  if (finished.generation != generation_ || phase_ != Phase::kRunning) return;
  members_.at(from).stage = Stage::kFinished;
  if (finished.stopped_as_agreed) stopped_as_agreed_ = true;
  end_if_finished();
}

// Orders all nodes to end the ranks of serving roles (--until) once the ranks that the job waits
// for have ended on every node.
void Coordinator::finish_work(Agent from, const WorkDone& done) {
  if (done.generation != generation_ || phase_ != Phase::kRunning) return;
  members_.at(from).work_done = true;
  const bool all_done = std::all_of(members_.begin(), members_.end(), [](const auto& entry) {
    const Member& member = entry.second;
    return member.work_done || member.stage == Stage::kFinished || member.stage == Stage::kReady;
  });
  if (!all_done) return;
  for (const auto& [agent, member] : members_) {
    if (member.stage == Stage::kRunning) send(agent, WindUpOrder{generation_});
  }
}

// Ends the job if the ranks of all nodes have finished. A node that arrived too late to take part
// (kReady) does not delay the end.
void Coordinator::end_if_finished() {
  const bool all_finished = std::all_of(members_.begin(), members_.end(), [](const auto& entry) {
    return entry.second.stage == Stage::kFinished || entry.second.stage == Stage::kReady;
  });
  if (all_finished) end_all({.exit_code = stopped_as_agreed_ ? kStoppedAsAgreed : 0});
}

void Coordinator::stopped(Agent from, const Stopped& report, Moment now) {
  if (report.generation != generation_ || phase_ == Phase::kGathering) return;
  Member& member = members_.at(from);
  member.stage = Stage::kReady;
  member.joining.offer = report.offer;
  lived_ = std::max(lived_, report.lived);
  steps_ = std::max(steps_, report.steps);
  if (phase_ == Phase::kStopping) settle(now);
}

// When a host leaves, a job that still has enough nodes continues without it; any other job ends.
void Coordinator::leave(Agent from, const Leaving& leaving, Moment now) {
  const std::string host = members_.at(from).joining.host;
  pause_until_ = std::max(pause_until_.value_or(now), now + kSignalDelay);
  if (num_members() - 1 < terms().min_nodes) {
    return end_all({128 + leaving.signal, "",
                    fmt::format("stopped by {} at host {}", signal_name(leaving.signal), host)},
                   from);
  }
  if (phase_ == Phase::kGathering) {
    members_.erase(from);
    admit_spares();
    return start_if_possible(now);
  }
  // The node stays a member until its ranks have ended and its connection has closed.
  members_.at(from).stage = Stage::kLeaving;
  change(fmt::format("host {} leaves ({})", host, signal_name(leaving.signal)), from, now);
}

void Coordinator::lose(Agent agent, const std::string& cause, Moment now) {
  spares_.erase(agent);
  const auto found = members_.find(agent);
  if (found == members_.end() || phase_ == Phase::kOver) return;
  const Member member = std::move(found->second);
  members_.erase(found);
  inquiry_.lose(agent);
  stragglers_.lose(agent);
  if (phase_ == Phase::kRunning && member.stage == Stage::kFinished) return end_if_finished();
  if (member.stage != Stage::kLeaving && phase_ != Phase::kGathering) {
    const std::string what = fmt::format("host {} is lost: {}", member.joining.host, cause);
    if (!lost_host_) {
      lost_host_ = {.kind = Failure::Kind::kHost,
                    .cause = what,
                    .end = "a lost host",
                    .exit_code = kExitEnvironment};
    }
    stop_all(agent, {what, Failure::Kind::kHost}, now);
  }
  admit_spares();
  if (phase_ == Phase::kGathering) return start_if_possible(now);
  settle(now);
}

void Coordinator::change(const std::string& what, Agent except, Moment now) {
  if (change_.empty()) change_ = what;
  stop_all(except, {what, {}}, now);
}

void Coordinator::stop_all(Agent except, const StopOrder& order, Moment now) {
  if (phase_ != Phase::kRunning) return;
  phase_ = Phase::kStopping;
  stop_until_ = now + settings_.stop_timeout;
  for (auto& [agent, member] : members_) {
    if (member.stage != Stage::kReady && agent != except) send(agent, order);
  }
}

// Orders the agent of the first failure to show it. From then on, no other failure can replace it.
void Coordinator::show_first_failure() {
  if (!first_failure_ || std::exchange(shown_, true)) return;
  send(first_failure_->agent, FirstFailureOrder{generation_});
}

// Gives up nodes with ranks that not even SIGKILL ends, for example because a file system does not
// answer.
void Coordinator::lose_the_stuck(Moment now) {
  std::vector<Agent> stuck;
  for (const auto& [agent, member] : members_) {
    if (member.stage != Stage::kReady) stuck.push_back(agent);
  }
  const std::string cause =
      fmt::format("its ranks did not end within {:g} s",
                  std::chrono::duration<double>(settings_.stop_timeout).count());
  for (const Agent agent : stuck) {
    const std::string host = members_.at(agent).joining.host;
    send(agent, EndOrder{.exit_code = kExitEnvironment,
                         .cause = fmt::format("host {} is lost: {}", host, cause),
                         .alone = true});
    lose(agent, cause, now);
  }
}

// Decides whether another generation follows, once no rank runs any more.
void Coordinator::settle(Moment now) {
  const bool all_ready = std::all_of(members_.begin(), members_.end(), [](const auto& entry) {
    return entry.second.stage == Stage::kReady;
  });
  if (phase_ != Phase::kStopping || !all_ready) return;
  show_first_failure();
  const std::optional<Failure> failure =
      lost_host_ || !first_failure_ ? lost_host_ : std::optional(first_failure_->failure);
  const std::string cause = failure ? failure->cause : change_;
  if (members_.empty()) return end_all({kExitEnvironment, cause, ""});
  const bool progressed = steps_ ? *steps_ > 0 : lived_ >= RestartPolicy::kLongLife;
  // A job of MIN:MAX nodes loses and gains hosts without using up a restart, if MIN are left.
  const bool elastic = terms().min_nodes < terms().num_nodes;
  const bool for_free = !failure || (lost_host_ && elastic && num_members() >= terms().min_nodes);
  if (for_free) {
    if (progressed) policy_.note_progress();
    gather(now, fmt::format("{}; going on with {}", cause, counted(num_members(), "node")));
    return start_if_possible(now);
  }
  const auto decision = policy_.after({*failure, progressed, lived_}, now);
  if (!decision.restart) return end_all({failure->exit_code, cause, decision.reason});
  gather(now, fmt::format("restart {} of at most {}, after {}", policy_.budget(now).num_restarts,
                          terms().restarts.max_restarts, cause));
  if (decision.pause.count() > 0) pause_until_ = now + decision.pause;
  start_if_possible(now);
}

void Coordinator::gather(Moment now, std::string note) {
  phase_ = Phase::kGathering;
  ++generation_;
  note_ = std::move(note);
  gather_until_ = now + settings_.join_timeout;
  remind_at_ = now + kFirstReminder;
  lived_ = {};
  steps_.reset();
  stopped_as_agreed_ = false;
  first_failure_.reset();
  lost_host_.reset();
  change_.clear();
  shown_ = false;
}

void Coordinator::start_if_possible(Moment now) {
  const int count = num_members();
  if (phase_ != Phase::kGathering || !has_enough()) return;
  if (pause_until_ && now < *pause_until_) return;
  // Only before the first generation do hosts arrive one after the other. Before later generations
  // the coordinator does not wait for last_call_timeout, because no more hosts are expected.
  if (count < settings_.expected_nodes && generation_ == settings_.first_generation) {
    if (!last_call_) last_call_ = now + settings_.last_call_timeout;
    if (now < *last_call_) return;
  }
  if (count == terms().num_nodes && !roles_fit()) {
    return end_all({kExitUsage, "",
                    fmt::format("--roles {} has {}, but the nodes start {}: the counts must add up",
                                to_text(terms().roles),
                                counted(launcher::num_ranks(terms().roles), "rank"), num_ranks())});
  }
  if (count > 0 && all_serve(roles_of(seats()))) {
    return end_all({kExitUsage, "",
                    fmt::format("--until names no role of the ranks that would start ({})",
                                to_text(roles_of(seats())))});
  }
  if (keep_fitting_members()) return start(now);
  if (num_members() == terms().num_nodes) end_all({kExitUsage, "", missing()});
}

// The members in the order of their node ranks. A node whose user gave it a rank below the number
// of nodes gets that rank. The other nodes get the remaining ranks. These nodes are sorted by the
// rank that the user gave (which is too high) or, without one, by the node's rank in the last
// generation. New nodes come last, in the order of arrival.
std::vector<Coordinator::Agent> Coordinator::seats() const {
  const auto count = members_.size();
  std::vector<Agent> seats(count, -1);
  constexpr int kLast = std::numeric_limits<int>::max();
  std::vector<std::tuple<int, std::int64_t, Agent>> others;
  for (const auto& [agent, member] : members_) {
    const int wanted = member.joining.node_rank.value_or(-1);
    if (wanted >= 0 && static_cast<std::size_t>(wanted) < count) {
      seats[static_cast<std::size_t>(wanted)] = agent;
    } else {
      const int before = member.node_rank >= 0 ? member.node_rank : kLast;
      others.emplace_back(wanted >= 0 ? wanted : before, member.arrival, agent);
    }
  }
  std::sort(others.begin(), others.end());
  auto next = others.begin();
  for (Agent& seat : seats) {
    if (seat < 0) seat = std::get<2>(*next++);
  }
  return seats;
}

int Coordinator::num_ranks() const {
  int sum = 0;
  for (const auto& [agent, member] : members_) sum += member.joining.num_ranks;
  return sum;
}

bool Coordinator::roles_fit() const {
  return terms().roles.empty() || launcher::num_ranks(terms().roles) == num_ranks();
}

// How many ranks have each role, in the order of nodes.
Roles Coordinator::roles_of(const std::vector<Agent>& order) const {
  if (!terms().roles.empty()) return terms().roles;
  Roles roles;
  for (const Agent agent : order) {
    const Joining& joining = members_.at(agent).joining;
    if (roles.empty() || roles.back().name != joining.role) {
      roles.push_back({.name = joining.role, .serves = joining.role_serves});
    }
    roles.back().count += joining.num_ranks;
  }
  return roles;
}

void Coordinator::start(Moment now) {
  phase_ = Phase::kRunning;
  pause_until_.reset();
  if (!note_.empty() && generation_ == settings_.first_generation) {
    note_ += fmt::format("; going on with {}", counted(num_members(), "node"));
  }
  const std::vector<Agent> order = seats();
  const Offer& offer = members_.at(order.front()).joining.offer;
  StartOrder start{.store = offer.store, .master = offer.master, .note = std::exchange(note_, "")};
  for (const Agent agent : order) start.stand_ins.push_back(members_.at(agent).joining.stand_in);
  stand_ins_ = start.stand_ins;
  deserters_.clear();
  start.place = {.generation = generation_,
                 .num_nodes = num_members(),
                 .world_size = num_ranks(),
                 .roles = roles_of(order),
                 .restarts = policy_.budget(now)};
  for (const Agent agent : order) {
    Member& member = members_.at(agent);
    send(agent, start);
    member.stage = Stage::kRunning;
    member.work_done = false;
    member.node_rank = start.place.node_rank++;
    start.place.first_rank += member.joining.num_ranks;
  }
  begin_inquiries();
}

void Coordinator::begin_inquiries() {
  std::map<Agent, std::string> hosts;
  std::set<Agent> agents;
  for (const auto& [agent, member] : members_) {
    hosts.emplace(agent, member.joining.host);
    agents.insert(agent);
  }
  stragglers_.begin(generation_, std::move(agents));
  inquiry_.begin(generation_, std::move(hosts));
}

void Coordinator::pass_on_inquiries() {
  for (auto& [to, order] : inquiry_.take_mail()) send(to, std::move(order));
  for (auto& [to, order] : stragglers_.take_mail()) send(to, std::move(order));
}

void Coordinator::tick(Moment now) {
  dismiss_spares(now);
  if (phase_ == Phase::kRunning) {
    inquiry_.tick(now);
    pass_on_inquiries();
  }
  if (first_failure_ && now >= first_failure_->decided_at) show_first_failure();
  if (phase_ == Phase::kStopping && now >= stop_until_) return lose_the_stuck(now);
  if (phase_ != Phase::kGathering) return;
  // Forgets a pause that is over; otherwise next_deadline() would remain in the past.
  if (pause_until_ && now >= *pause_until_) pause_until_.reset();
  start_if_possible(now);
  if (phase_ != Phase::kGathering) return;
  if (now >= gather_until_) return end_all({kExitEnvironment, "", missing()});
  remind(now);
}

// Tells waiting nodes what they wait for, so that a job that cannot begin is not mistaken for a
// slow one.
void Coordinator::remind(Moment now) {
  if (now < remind_at_) return;
  remind_at_ = now + kNextReminder;
  if (has_enough()) return;
  const auto left = std::chrono::round<std::chrono::seconds>(gather_until_ - now);
  const Order order = WaitOrder{fmt::format(
      "{} of {} are here ({}); waiting for the others for up to {} s. Is the same command running "
      "on them? (--rdzv-conf join_timeout)",
      num_members(), counted(terms().min_nodes, "node"), hosts_here(), left.count())};
  for (const auto& [agent, member] : members_) send(agent, order);
}

std::string Coordinator::hosts_here() const {
  std::vector<std::string_view> hosts;
  for (const auto& [agent, member] : members_) hosts.push_back(member.joining.host);
  return fmt::format("{}", fmt::join(hosts, ", "));
}

std::string Coordinator::missing() const {
  if (terms().logical_shards > 0 && num_members() >= terms().min_nodes) {
    return fmt::format(
        "{} logical shards cannot be divided among the ranks of {} or more of the nodes that are "
        "here ({}): {} ranks can divide them",
        terms().logical_shards, terms().min_nodes, hosts_here(),
        ranks_that_fit(terms().logical_shards));
  }
  return fmt::format(
      "{} arrived within {:g} s, {} needed; here: {}. Is the same command running on the others, "
      "and can they reach the endpoint?",
      counted(num_members(), "node"), std::chrono::duration<double>(settings_.join_timeout).count(),
      terms().min_nodes == 1 ? "1 is" : fmt::format("{} are", terms().min_nodes), hosts_here());
}

Coordinator::Moment Coordinator::next_deadline() const {
  Moment next = Moment::max();
  for (const auto& [agent, spare] : spares_) next = std::min(next, spare.until);
  if (phase_ == Phase::kRunning) return std::min(next, inquiry_.next_deadline());
  if (first_failure_ && !shown_) next = std::min(next, first_failure_->decided_at);
  if (phase_ == Phase::kStopping) return std::min(next, stop_until_);
  if (phase_ != Phase::kGathering) return next;
  next = std::min(next, gather_until_);
  if (num_members() < terms().min_nodes) next = std::min(next, remind_at_);
  if (last_call_ && generation_ == settings_.first_generation) next = std::min(next, *last_call_);
  if (pause_until_) next = std::min(next, *pause_until_);
  return next;
}

void Coordinator::end_all(const EndOrder& order, Agent except) {
  phase_ = Phase::kOver;
  for (const auto& [agent, member] : members_) {
    if (agent != except) send(agent, order);
  }
  for (const auto& [agent, spare] : spares_) {
    send(agent,
         EndOrder{order.exit_code, order.cause, "the job has ended, and this node was not needed"});
  }
  spares_.clear();
}

}  // namespace paceline::launcher
