#include "paceline/engine/collectives/backends/paceline/slow_wait.h"

#include <algorithm>
#include <chrono>
#include <deque>
#include <set>

#include <fmt/format.h>

#include "paceline/engine/collectives/flight/group_flight.h"
#include "paceline/engine/core/log.h"
#include "paceline/engine/core/timing.h"
#include "paceline/engine/transport/mesh.h"

namespace paceline {
namespace {

using namespace std::chrono_literals;

constexpr auto kWarnAfter = 10s;

// "rank 1 (box), rank 2 (box)".
template <class Rank>
std::string list(const Mesh& mesh, std::span<const Rank> ranks) {
  std::string text;
  for (const Rank& one : ranks) text += (text.empty() ? "" : ", ") + mesh.describe(one.rank);
  return text;
}

}  // namespace

std::vector<Suspect> find_suspects(const Mesh& mesh, std::span<const Awaited> awaited, bool asked) {
  std::vector<Suspect> suspects;
  std::deque<Suspect> to_visit;
  std::set<int> seen{mesh.rank()};
  const auto enqueue = [&](std::span<const Awaited> next, int waiter) {
    for (const Awaited& one : next) {
      if (seen.insert(one.rank).second) to_visit.push_back({one.rank, one.has_arrived, waiter});
    }
  };
  for (enqueue(awaited, mesh.rank()); !to_visit.empty(); to_visit.pop_front()) {
    const Suspect current = to_visit.front();
    if (const auto answer = asked ? mesh.answer_of(current.rank) : std::nullopt) {
      enqueue(*answer, current.rank);
    } else {
      suspects.push_back(current);
    }
  }
  const auto has_arrived = [](const Suspect& suspect) { return suspect.has_arrived; };
  if (!std::all_of(suspects.begin(), suspects.end(), has_arrived))
    std::erase_if(suspects, has_arrived);
  return suspects;
}

std::string describe_suspects(const Mesh& mesh, std::span<const Suspect> suspects) {
  const Suspect& first = suspects.front();
  std::string text = list(mesh, suspects);
  const bool is_of_another = first.waiter != mesh.rank();
  const bool have_one_waiter =
      std::all_of(suspects.begin(), suspects.end(),
                  [&](const Suspect& suspect) { return suspect.waiter == first.waiter; });
  if (is_of_another && have_one_waiter) {
    text += fmt::format(", which {} is waiting for,", mesh.name_of(first.waiter));
  }
  if (first.has_arrived) return text + " arrived but stalled";
  return text + (suspects.size() == 1 ? " has not arrived" : " have not arrived");
}

std::string describe_waiting(const Mesh& mesh, std::span<const Awaited> awaited) {
  if (awaited.empty()) return "a peer stopped reading mid-transfer";
  return list(mesh, awaited) +
         (awaited.size() == 1 ? " is waiting as well" : " are waiting as well");
}

std::vector<int> blamed(std::span<const Awaited> awaited, std::span<const Suspect> suspects) {
  std::vector<int> ranks;
  for (const Suspect& suspect : suspects) ranks.push_back(suspect.rank);
  if (suspects.empty()) {
    for (const Awaited& one : awaited) ranks.push_back(one.rank);
  }
  return ranks;
}

Error slow_wait_error(const Mesh& mesh, const Fingerprint& operation, const WaitOptions& wait,
                      AwakeClock::time_point begin, const Missing& missing) {
  return Error(ErrorCode::kTimeout,
               fmt::format("{}: {} in group {} timed out after {:.1f} s: {}; {}{}", mesh.self(),
                           operation.describe(), mesh.name(), seconds_since(begin), missing.text,
                           kAdviceForLate, verdict_of_records(wait.recorder, mesh.name())),
               {.ranks = mesh.in_world(missing.ranks)});
}

void warn_of_slow_wait(Mesh& mesh, const Fingerprint& operation, AwakeClock::time_point begin,
                       bool asks, SlowWaitSteps& steps, const std::function<Missing()>& missing) {
  const auto waited = AwakeClock::now() - begin;
  if (steps.has_warned || waited < kWarnAfter - kAnswerLimit) return;
  if (asks && !steps.has_asked) mesh.ask_peers();
  steps.has_asked = true;
  if (waited < kWarnAfter) return;
  log::warning(fmt::format("{} has been waiting for {:.0f} s: {}", operation.describe(),
                           seconds_since(begin), missing().text));
  steps.has_warned = true;
}

}  // namespace paceline
