#include "apps/call_meter.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include <fmt/format.h>

#include "paceline/launcher/diagnosis/thread_census.h"

namespace paceline::apps {
namespace {

// What ended between the two looks, by time.
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
    // A file that another process left tells nothing of this one.
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
