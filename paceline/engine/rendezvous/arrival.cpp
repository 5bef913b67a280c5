#include "paceline/engine/rendezvous/arrival.h"

#include <algorithm>
#include <utility>

#include <unistd.h>

#include "paceline/engine/core/authentication.h"
#include "paceline/engine/core/awake_clock.h"
#include "paceline/engine/core/check.h"
#include "paceline/engine/core/log.h"
#include "paceline/engine/core/option_text.h"
#include "paceline/engine/core/system/host.h"

namespace paceline {
namespace {

using namespace std::chrono_literals;

// The values of "outcome". The last two are followed by the ranks that caused the error (separated
// by commas), a colon, and the message.
constexpr char kReady[] = "ready";
constexpr std::string_view kTimedOut = "timeout ";
constexpr std::string_view kRefused = "invalid ";

std::string outcome_of(const Error& error) {
  return fmt::format("{}{}:{}", error.code() == ErrorCode::kTimeout ? kTimedOut : kRefused,
                     fmt::join(error.ranks(), ","), error.what());
}

void throw_unless_ready(std::string_view outcome) {
  if (outcome == kReady) return;
  const bool timed_out = outcome.starts_with(kTimedOut);
  outcome.remove_prefix(std::min(outcome.size(), kTimedOut.size()));
  const auto colon = outcome.find(':');
  ErrorContext context;
  for (const std::string_view rank : split(outcome.substr(0, colon), ',')) {
    if (const auto number = parse_number<int>(rank)) context.ranks.push_back(*number);
  }
  throw Error(timed_out ? ErrorCode::kTimeout : ErrorCode::kInvalid,
              std::string(outcome.substr(std::min(colon, outcome.size() - 1) + 1)),
              std::move(context));
}

// The value of a claimed place, with "|" between its parts: a text for error messages, the identity
// of the host, and random digits that distinguish two ranks of one process.
std::string own_claim() {
  return fmt::format("process {} on host {}|{}|{}", ::getpid(), host_name(), host_token(),
                     random_hex(8));
}

std::string prefix_of_meetings(int generation) { return fmt::format("rendezvous/{}/", generation); }

std::string claimant(const std::string& claim) { return claim.substr(0, claim.find('|')); }

std::string identity(const std::string& claim) {
  const auto start = claim.find('|');
  const auto end = claim.rfind('|');
  return start == std::string::npos ? claim : claim.substr(start + 1, end - start - 1);
}

}  // namespace

Absence absence_from_meeting(Store& store, int generation, int world_size) {
  const std::string prefix = prefix_of_meetings(generation) + "0/";
  Absence absence;
  if (!store.check({prefix + "world_size"}) || store.check({prefix + "outcome"})) return absence;
  for (int rank = 0; rank < world_size; ++rank) {
    const bool is_here = store.check({fmt::format("{}rank/{}", prefix, rank)});
    (is_here ? absence.waiting : absence.missing).push_back(rank);
  }
  if (absence.waiting.empty() || absence.missing.empty()) return {};
  return absence;
}

// The round is the number of times that this rank has left a rendezvous of the generation. That
// number is equal on all ranks.
Arrival::Arrival(std::shared_ptr<Store> store, const LaunchEnvironment& environment)
    : store_(std::move(store)), environment_(environment) {
  const std::string generation = prefix_of_meetings(environment_.restart_count);
  round_ = store_->add(generation + fmt::format("left/{}", environment_.rank), 0);
  prefix_ = generation + fmt::format("{}/", round_);
}

std::string Arrival::key(const std::string& name) const { return prefix_ + name; }
std::string Arrival::place(int rank) const { return key(fmt::format("rank/{}", rank)); }

std::vector<std::string> Arrival::places() const {
  std::vector<std::string> keys;
  for (int rank = 0; rank < environment_.world_size; ++rank) keys.push_back(place(rank));
  return keys;
}

void Arrival::meet(std::chrono::milliseconds timeout, LogTimes log_times) {
  const auto deadline = Deadline::after(std::min<std::chrono::milliseconds>(timeout, 24h * 365));
  check_world_size();
  claim_place();
  if (store_->check(places())) store_->compare_set(key("outcome"), "", kReady);
  throw_unless_ready(wait_for_outcome(deadline, timeout, log_times));
}

void Arrival::check_world_size() {
  const auto mine = std::to_string(environment_.world_size);
  const auto agreed = store_->compare_set(key("world_size"), "", mine);
  if (agreed == mine) return;
  const Error error(ErrorCode::kInvalid,
                    fmt::format("rank {} ({}) was started with world size {}, others with {}: all "
                                "ranks need the same WORLD_SIZE",
                                environment_.rank, claimant(own_claim()), mine, agreed),
                    {.ranks = {environment_.rank}});
  give_up(error);
  throw error;
}

void Arrival::claim_place() {
  const auto mine = own_claim();
  const auto taken_by = store_->compare_set(place(environment_.rank), "", mine);
  if (taken_by == mine) return;
  const bool is_own = claimant(taken_by) == claimant(mine);
  const Error error(ErrorCode::kInvalid,
                    fmt::format("rank {} is claimed twice: by {} and by {}. {}", environment_.rank,
                                claimant(taken_by), claimant(mine),
                                is_own ? "Give the second group of this process another name, or "
                                         "close the first one"
                                       : "Give every process its own RANK"),
                    {.ranks = {environment_.rank}});
  give_up(error);
  throw error;
}

std::string Arrival::give_up(const Error& error) {
  return store_->compare_set(key("outcome"), "", outcome_of(error));
}

std::string Arrival::wait_for_outcome(Deadline deadline, std::chrono::milliseconds timeout,
                                      LogTimes log_times) {
  for (auto pause = log_times.first;; pause = log_times.every) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(put_off(deadline).remaining());
    try {
      return store_->get(key("outcome"), std::min(left, pause));
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kTimeout) throw;
    }
    const auto missing = missing_ranks();
    const auto text = fmt::format("rank {} of {} waits for {}", environment_.rank,
                                  environment_.world_size, ranks_text(missing));
    if (put_off(deadline).expired()) {
      return give_up(
          {ErrorCode::kTimeout,
           fmt::format("{}, which did not arrive within {} ms: were all {} processes started?",
                       text, timeout.count(), environment_.world_size),
           {.ranks = missing, .deadline = timeout}});
    }
    log::warning(text);
  }
}

std::vector<int> Arrival::missing_ranks() {
  std::vector<int> missing;
  for (int rank = 0; rank < environment_.world_size; ++rank) {
    if (!store_->check({place(rank)})) missing.push_back(rank);
  }
  return missing;
}

void Arrival::wait_for_others(std::chrono::milliseconds timeout) {
  auto others = places();
  others.erase(others.begin() + environment_.rank);
  store_->wait(others, timeout);
}

std::vector<std::string> Arrival::hosts() {
  auto claims = store_->multi_get(places());
  std::transform(claims.begin(), claims.end(), claims.begin(), identity);
  return claims;
}

void Arrival::leave() {
  store_->add(fmt::format("rendezvous/{}/left/{}", environment_.restart_count, environment_.rank),
              1);
}

}  // namespace paceline
