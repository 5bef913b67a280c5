#include "apps/top/job_meters.h"

#include <algorithm>
#include <fstream>
#include <tuple>
#include <utility>

#include <fmt/format.h>
#include <unistd.h>

#include "paceline/engine/collectives/collective.h"
#include "paceline/engine/collectives/flight/explain.h"
#include "paceline/engine/core/error.h"
#include "paceline/launcher/diagnosis/thread_census.h"

namespace paceline::apps {

namespace {

std::string state_of(pid_t pid) {
  std::ifstream file(fmt::format("/proc/{}/stat", pid));
  std::string line;
  std::getline(file, line);
  const auto end = line.rfind(')');
  if (end == std::string::npos || end + 2 >= line.size() || line[end + 2] == 'Z') return "gone";
  return line[end + 2] == 'T' || line[end + 2] == 't' ? "stopped" : "running";
}

double cpu_seconds(const launcher::ThreadTimes& before, const launcher::ThreadTimes& after) {
  long ticks = 0;
  for (const auto& [thread, now] : after) {
    const auto earlier = before.find(thread);
    ticks += now - (earlier == before.end() ? 0 : earlier->second);
  }
  return static_cast<double>(ticks) / static_cast<double>(sysconf(_SC_CLK_TCK));
}

// The share of the last `seconds` that the rank spent inside operations.
double inside_operations(const Flight& flight, double seconds) {
  const auto window = static_cast<std::uint64_t>(seconds * 1e9);
  const std::uint64_t begin = flight.now > window ? flight.now - window : 0;
  std::uint64_t inside = 0;
  for (const FlightOperation& operation : flight.operations) {
    if (operation.started == 0) continue;
    const std::uint64_t from = std::max(operation.started, begin);
    const std::uint64_t to = operation.ended == 0 ? flight.now : operation.ended;
    if (to > from) inside += to - from;
  }
  return window == 0 ? 0 : std::min(1.0, static_cast<double>(inside) / static_cast<double>(window));
}

std::string last_operation(const Flight& flight) {
  if (flight.operations.empty()) return "";
  const FlightOperation& last = flight.operations.back();
  const bool open = last.state == FlightState::kEntered || last.state == FlightState::kStarted;
  return fmt::format("{}{} #{}", open ? "in " : "after ", name_of(static_cast<Op>(last.call.op)),
                     last.sequence);
}

}  // namespace

RankFigures RankMeter::measure(const JobEntry& job, const JobRank& rank, const Flight* flight) {
  const auto family = launcher::family_of(rank.pid);
  Before now{Clock::now(), launcher::thread_times(rank.pid),
             read_step_gauge(job.flight_directory + "/" + step_gauge_name(rank.rank)),
             flight == nullptr ? 0 : flight->num_begun};
  RankFigures figures{.rank = rank.rank, .pid = rank.pid, .state = state_of(rank.pid)};
  // Ignores a file that another process has left.
  if (now.steps && std::find(family.begin(), family.end(), now.steps->pid) == family.end()) {
    now.steps.reset();
  }
  figures.memory_bytes = launcher::memory_of(family);
  if (now.steps) figures.step = now.steps->begun_at.value_or(0) + now.steps->steps;
  if (flight != nullptr) figures.where = last_operation(*flight);
  const auto before = before_.find(rank.rank);
  if (before != before_.end()) {
    const Before& then = before->second;
    const double seconds = std::chrono::duration<double>(now.at - then.at).count();
    figures.cpus = cpu_seconds(then.threads, now.threads) / seconds;
    if (flight != nullptr && now.begun >= then.begun) {
      figures.operations_per_second = static_cast<double>(now.begun - then.begun) / seconds;
      figures.waiting_share = inside_operations(*flight, seconds);
    }
    if (now.steps && then.steps && now.steps->samples >= then.steps->samples) {
      figures.samples_per_second =
          static_cast<double>(now.steps->samples - then.steps->samples) / seconds;
      const double stepped = now.steps->seconds - then.steps->seconds;
      if (stepped > 0) {
        figures.waiting_share =
            (now.steps->communication_seconds - then.steps->communication_seconds) / stepped;
      }
    }
  }
  before_[rank.rank] = std::move(now);
  return figures;
}

std::vector<RankFigures> RankMeter::look(const JobEntry& job) {
  std::vector<Flight> flights;
  Explanation explanation;
  try {
    flights = read_flights(job.flight_directory).flights;
    explanation = explain(flights);
  } catch (const Error&) {
    // A program that creates no group leaves no records.
  }
  std::vector<RankFigures> figures;
  for (const JobRank& rank : job.ranks) {
    const auto flight = std::find_if(flights.begin(), flights.end(),
                                     [&](const Flight& other) { return other.rank == rank.rank; });
    figures.push_back(measure(job, rank, flight == flights.end() ? nullptr : &*flight));
    figures.back().straggler = explanation.verdict == Verdict::kStraggler &&
                               std::find(explanation.ranks.begin(), explanation.ranks.end(),
                                         rank.rank) != explanation.ranks.end();
  }
  return figures;
}

namespace {

// The numbers of calls that ended between the two readings, by duration.
std::vector<std::uint64_t> ended_since(const CallFigures& now, const CallFigures* before) {
  std::vector<std::uint64_t> ended = now.ended;
  if (before == nullptr) return ended;
  for (std::size_t i = 0; i < ended.size(); ++i) ended[i] -= std::min(ended[i], before->ended[i]);
  return ended;
}

const CallFigures* same_method(const std::vector<CallFigures>& methods, const CallFigures& one) {
  const auto found = std::find_if(methods.begin(), methods.end(), [&](const CallFigures& other) {
    return other.side == one.side && other.method == one.method;
  });
  return found == methods.end() ? nullptr : &*found;
}

MethodFigures figures_of(const CallFigures& method) {
  return {.side = method.side,
          .method = method.method,
          .under_way = method.under_way(),
          .queued = method.queued(),
          .failed = method.failed};
}

}  // namespace

std::vector<WorkerFigures> CallMeter::look(const JobEntry& job) {
  std::vector<WorkerFigures> workers;
  for (const JobRank& rank : job.ranks) {
    const auto reading = read_call_gauge(job.flight_directory + "/" + call_gauge_name(rank.rank));
    if (!reading) continue;
    // Ignores a file that another process has left.
    const auto family = launcher::family_of(rank.pid);
    if (std::find(family.begin(), family.end(), reading->pid) == family.end()) continue;
    const auto now = Clock::now();
    const auto found = before_.find(rank.rank);
    const Before* const before =
        found != before_.end() && found->second.pid == reading->pid ? &found->second : nullptr;
    WorkerFigures worker{.rank = rank.rank,
                         .worker = reading->worker,
                         .references = reading->references,
                         .objects = reading->objects};
    for (const CallFigures& method : reading->methods) {
      worker.methods.push_back(figures_of(method));
      if (before == nullptr) continue;
      const auto ended = ended_since(method, same_method(before->methods, method));
      const double seconds = std::chrono::duration<double>(now - before->at).count();
      const double count = static_cast<double>(CallFigures{.ended = ended}.num_ended());
      worker.methods.back().per_second = count / seconds;
      worker.methods.back().p50 = call_seconds(ended, 0.5);
      worker.methods.back().p99 = call_seconds(ended, 0.99);
    }
    std::sort(worker.methods.begin(), worker.methods.end(), [](const auto& a, const auto& b) {
      return std::tie(a.side, a.method) < std::tie(b.side, b.method);
    });
    before_[rank.rank] = {reading->pid, now, reading->methods};
    workers.push_back(std::move(worker));
  }
  return workers;
}

std::string time_text(double seconds) {
  for (const auto& [unit, name] : {std::pair(1e-6, "us"), std::pair(1e-3, "ms")}) {
    if (seconds < 999.5 * unit) return fmt::format("{:.3g} {}", seconds / unit, name);
  }
  return fmt::format("{:.3g} s", seconds);
}

}  // namespace paceline::apps
