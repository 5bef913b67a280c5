#include "paceline/launcher/job/job_membership.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "paceline/engine/core/check.h"
#include "paceline/engine/core/log.h"
#include "paceline/engine/core/system/host.h"
#include "paceline/launcher/coordination/job_control.h"

namespace paceline::launcher {

namespace {

using namespace std::chrono_literals;

constexpr auto kLookUpPause = 1s;
// How long an agent waits before it reports that it waits: agents are seldom started in the same
// second.
constexpr auto kSilence = 5s;
// Added to the time in which ranks must end by themselves: the time for SIGKILL, and for the end of
// processes that ranks leave running.
constexpr auto kStopMargin = 30s;

// Whether some process accepts connections at the endpoint.
bool port_is_taken(const Endpoint& endpoint) {
  try {
    connect_tcp(endpoint, Deadline::after(CoordinatorSearch::kAttempt));
    return true;
  } catch (const Error&) {
    return false;
  }
}

// An address at which other hosts can reach this host. Used if the connection to the coordinator
// does not show such an address.
std::string other_address() {
  const std::string wanted = process_environment()("PACELINE_SOCKET_IFNAME").value_or("");
  return choose_address(wanted, interface_addresses(), false);
}

}  // namespace

CoordinatorSearch::CoordinatorSearch(EventLoop& loop, const LaunchOptions& options)
    : loop_(loop),
      options_(options),
      give_up_at_(Deadline::after(options.meeting.join_timeout)),
      say_at_(Deadline::after(kSilence)) {
  if (options.several_nodes()) secret_ = require_job_secret(options);
}

CoordinatorSettings CoordinatorSearch::settings() const {
  return {.terms = options_.terms(),
          .join_timeout = options_.meeting.join_timeout,
          .last_call_timeout = options_.meeting.last_call_timeout,
          .stop_timeout = options_.shutdown_timeout + kStopMargin,
          .loss_timeout = options_.keep_alive().limit() + 2 * options_.keep_alive().interval,
          .expected_nodes = options_.num_nodes};
}

std::unique_ptr<JobControl> CoordinatorSearch::find() {
  if (!options_.several_nodes()) return std::make_unique<CoordinatorHost>(loop_, settings());
  auto found = last_ || !candidates_.empty() ? find_among_candidates() : find_first();
  if (!found && put_off(give_up_at_).expired()) give_up();
  return found;
}

void CoordinatorSearch::give_up() const {
  if (was_coordinator_) {
    fail(ErrorCode::kTimeout,
         "this node lost {}, and found none of the other nodes: {}. They have ended, or this host "
         "cannot reach them; the job is not restarted here. Start it again to continue from its "
         "newest checkpoint",
         loss_text_, cause_);
  }
  fail(ErrorCode::kTimeout,
       "the other nodes of the job were not found at {}: {}. Is the agent of node 0 running, and "
       "does this host reach it? (--rdzv-conf join_timeout)",
       to_string(options_.meeting.endpoint), cause_);
}

// Returns an empty Fd if another agent must be the first coordinator.
Fd CoordinatorSearch::listen_if_host() const {
  const auto& meeting = options_.meeting;
  if (meeting.is_host.value_or(options_.node_rank == 0)) return listen_for_the_others();
  if (meeting.is_host || options_.node_rank) return {};
  try {
    return listen_tcp_for_others(meeting.endpoint);
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kInvalid) throw;
    return {};  // not this host's address, or another agent of this host already listens
  }
}

Fd CoordinatorSearch::listen_for_the_others() const {
  const Endpoint& endpoint = options_.meeting.endpoint;
  try {
    return listen_tcp_as_host(endpoint);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kSystem || !port_is_taken(endpoint)) throw;
    fail(ErrorCode::kSystem,
         "this node ({}) is where the job's nodes meet, but something listens at {} already: "
         "another node with the same option, or another job. Give every node a --node-rank of "
         "its own, and every job another port (--master-port or --rdzv-endpoint)",
         options_.meeting.is_host ? "--rdzv-conf is_host" : "--node-rank 0", to_string(endpoint));
  }
}

// Whether the endpoint's name resolves. Looks the name up once a second until it does.
bool CoordinatorSearch::name_is_known() {
  if (named_ || !look_up_at_.expired()) return named_;
  look_up_at_ = Deadline::after(kLookUpPause);
  const bool first = cause_.empty();
  cause_ = why_unresolved(options_.meeting.endpoint.host);
  named_ = cause_.empty();
  if (!named_ && first) {
    log::warning(fmt::format("{}; trying again for up to {:g} s (--rdzv-conf join_timeout)", cause_,
                             std::chrono::duration<double>(options_.meeting.join_timeout).count()));
  }
  return named_;
}

std::unique_ptr<JobControl> CoordinatorSearch::find_first() {
  const Endpoint& endpoint = options_.meeting.endpoint;
  if (!name_is_known()) return nullptr;
  Fd listener = listen_if_host();
  if (!listener) return connect(endpoint);
  address_ = is_of_this_host(endpoint.host) ? endpoint.host : other_address();
  current_ = stand_in_ = endpoint;
  own_ = {endpoint};
  CoordinatorSettings first = settings();
  first.leader = endpoint;
  return std::make_unique<CoordinatorHost>(loop_, first, std::move(listener), *secret_,
                                           options_.keep_alive());
}

std::unique_ptr<JobControl> CoordinatorSearch::connect(const Endpoint& endpoint) {
  try {
    auto link = std::make_unique<CoordinatorLink>(loop_, endpoint, *secret_, options_.keep_alive(),
                                                  Deadline::after(kAttempt));
    address_ = link->local_address();
    if (is_link_local(address_)) address_ = other_address();
    current_ = link->peer();  // numeric, so that no name must be looked up if the network fails
    prepare_stand_in();
    return link;
  } catch (const Error& error) {
    const bool may_come = error.code() == ErrorCode::kTimeout ||
                          error.code() == ErrorCode::kPeerLost ||
                          (last_ && error.code() == ErrorCode::kInvalid);
    if (!may_come) throw;
    cause_ = error.what();
    say_that_it_waits();
    return nullptr;
  }
}

// Warns once that this agent waits, but not in the first seconds.
void CoordinatorSearch::say_that_it_waits() {
  if (last_ || said_ || !say_at_.expired()) return;
  said_ = true;
  log::warning(fmt::format(
      "{}; trying again for up to {:g} s in all (--rdzv-conf join_timeout). Is the agent of node 0 "
      "running?",
      cause_, std::chrono::duration<double>(options_.meeting.join_timeout).count()));
}

// Listens on the port that this agent used before, if any, because other agents look for it there.
// If that port is taken, listens on any free port.
void CoordinatorSearch::prepare_stand_in() {
  if (stand_in_listener_) return;
  try {
    stand_in_listener_ = listen_tcp({address_, stand_in_.port});
  } catch (const Error&) {
    stand_in_listener_ = listen_tcp({address_, 0});
  }
  stand_in_ = {address_, local_port(stand_in_listener_)};
  own_.push_back(stand_in_);
}

bool CoordinatorSearch::is_own(const Endpoint& candidate) const {
  return std::find(own_.begin(), own_.end(), candidate) != own_.end();
}

void CoordinatorSearch::lose(const LastStart& last, const std::string& cause) {
  loss_text_ = cause;
  was_coordinator_ = leads();
  last_ = last;
  candidates_ = last.order.stand_ins;
  next_candidate_ = 0;
  std::erase(candidates_, current_);
  if (!was_coordinator_) candidates_.insert(candidates_.begin(), current_);
  const auto patience = options_.meeting.join_timeout;
  give_up_at_ =
      Deadline::after(was_coordinator_ ? std::min(patience, settings().stop_timeout) : patience);
}

void CoordinatorSearch::follow(const Endpoint& leader, const std::optional<LastStart>& last) {
  loss_text_ = fmt::format("the job's coordinator at {}", to_string(current_));
  was_coordinator_ = false;
  last_ = last;
  candidates_ = last ? last->order.stand_ins : std::vector<Endpoint>();
  next_candidate_ = 0;
  std::erase(candidates_, leader);
  candidates_.insert(candidates_.begin(), leader);
  give_up_at_ = Deadline::after(options_.meeting.join_timeout);
}

std::unique_ptr<JobControl> CoordinatorSearch::find_among_candidates() {
  if (candidates_.empty()) return nullptr;
  const Endpoint candidate = candidates_[next_candidate_];
  next_candidate_ = (next_candidate_ + 1) % candidates_.size();
  if (!is_own(candidate)) return connect(candidate);
  return last_ && stand_in_listener_ ? lead_next_generation() : nullptr;
}

std::unique_ptr<JobControl> CoordinatorSearch::lead_next_generation() {
  CoordinatorSettings mine = settings();
  mine.expected_nodes = last_->order.place.num_nodes - 1;
  mine.leader = stand_in_;
  mine.first_generation = last_->order.place.generation + 1;
  mine.first_note = "lost " + loss_text_;
  for (const Endpoint& candidate : candidates_) {
    if (!is_own(candidate) && is_numeric(candidate.host)) mine.stand_ins.push_back(candidate);
  }
  mine.terms.restarts = last_->restarts();
  // Without restarts left, no lost node is replaced, and the remaining nodes join as soon as no
  // rank runs on them.
  if (mine.terms.restarts.is_used_up()) {
    mine.join_timeout = std::min(mine.join_timeout, mine.stop_timeout);
  }
  current_ = stand_in_;
  return std::make_unique<CoordinatorHost>(loop_, mine, std::move(stand_in_listener_), *secret_,
                                           options_.keep_alive());
}

namespace {

using namespace std::chrono_literals;

constexpr auto kSearchPause = 50ms;

}  // namespace

JobMembership::JobMembership(EventLoop& loop, const LaunchOptions& options, Consoles& consoles)
    : options_(options), consoles_(consoles), search_(loop, options) {}

std::string JobMembership::host() const {
  return options_.part ? options_.part->host : host_name();
}

void JobMembership::seek() {
  coordinator_ = search_.find();
  seek_at_ = Deadline::after(kSearchPause);
  if (!coordinator_) return;
  claim_services();
  // Tells the launcher of --hosts where the leader is, if this node leads or if the launcher still
  // believes that this node leads.
  if (search_.leads() || said_leads_) consoles_.tell_leads(search_.current());
  said_leads_ = search_.leads();
  report(Joining{.terms = options_.terms(),
                 .host = host(),
                 .num_ranks = options_.num_local_ranks,
                 .role = options_.role,
                 .role_serves = options_.role_serves,
                 .node_rank = options_.node_rank,
                 .stand_in = search_.stand_in(),
                 .offer = services_->offer(),
                 .next_generation = last_start_ ? last_start_->order.place.generation + 1 : 0});
}

void JobMembership::report(const Report& report) {
  if (coordinator_) coordinator_->report(report);
}

std::string JobMembership::lose_coordinator() {
  std::string cause = coordinator_->lost();
  coordinator_.reset();
  if (last_start_) search_.lose(*last_start_, cause);
  seek_at_ = Deadline::after(0ns);
  return cause;
}

void JobMembership::follow(const Endpoint& leader) {
  coordinator_.reset();
  search_.follow(leader, last_start_);
  seek_at_ = Deadline::after(0ns);
}

JobTerms JobMembership::terms() const {
  JobTerms terms = options_.terms();
  if (last_start_) terms.restarts = last_start_->restarts();
  return terms;
}

bool JobMembership::may_have_a_successor() const {
  return terms().may_go_on_with(last_start_->order.place.num_nodes - 1);
}

void JobMembership::begin(const StartOrder& order) {
  last_start_ = LastStart{order};
  if (order.place.node_rank != 0) services_->use({order.store, order.master});
}

Offer JobMembership::offer_anew() {
  claim_services();
  return services_->offer();
}

// Ends the old services first, because the new ones may need the same ports.
void JobMembership::claim_services() {
  services_.reset();
  services_ = options_.several_nodes()
                  ? std::make_unique<JobServices>(search_.address(), search_.secret())
                  : std::make_unique<JobServices>(options_);
}

}  // namespace paceline::launcher
