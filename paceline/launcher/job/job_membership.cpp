#include "paceline/launcher/job/job_membership.h"

#include "paceline/engine/core/host.h"

namespace paceline::launcher {
namespace {

using namespace std::chrono_literals;

constexpr auto kSearchPause = 50ms;

}  // namespace

JobMembership::JobMembership(EventLoop& loop, const LaunchOptions& options,
                             const LauncherChannel& launcher)
    : options_(options), launcher_(launcher), search_(loop, options) {}

std::string JobMembership::host() const {
  return options_.part ? options_.part->host : host_name();
}

void JobMembership::seek() {
  coordinator_ = search_.find();
  seek_at_ = Deadline::after(kSearchPause);
  if (!coordinator_) return;
  claim_services();
  // If the launcher takes this node for the leader, it is told where the leader is.
  if (search_.leads() || said_leads_) launcher_.say_leads(search_.current());
  said_leads_ = search_.leads();
  report(Joining{.version = options_.version,
                 .run_id = options_.run_id,
                 .host = host(),
                 .num_ranks = options_.num_local_ranks,
                 .min_nodes = options_.min_nodes,
                 .max_nodes = options_.num_nodes,
                 .logical_shards = options_.logical_shards,
                 .roles = options_.roles,
                 .role = options_.role,
                 .role_serves = options_.role_serves,
                 .node_rank = options_.node_rank,
                 .stand_in = search_.stand_in(),
                 .offer = services_->offer(),
                 .next_generation = last_start_ ? last_start_->place.generation + 1 : 0});
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

bool JobMembership::may_have_a_successor() const {
  return options_.restarts.max_restarts > 0 ||
         last_start_->place.num_nodes - 1 >= options_.min_nodes;
}

void JobMembership::begin(const StartOrder& order) {
  last_start_ = order;
  if (order.place.node_rank != 0) services_->use({order.store, order.master});
}

Offer JobMembership::offer_anew() {
  claim_services();
  return services_->offer();
}

// The old ones are given up first: their ports may be the ones that are asked for again.
void JobMembership::claim_services() {
  services_.reset();
  services_ = options_.several_nodes()
                  ? std::make_unique<JobServices>(search_.address(), search_.secret())
                  : std::make_unique<JobServices>(options_);
}

}  // namespace paceline::launcher
