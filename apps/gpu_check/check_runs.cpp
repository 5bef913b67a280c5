#include "apps/gpu_check/check_runs.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <optional>
#include <span>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "paceline/engine/core/check.h"

#include "apps/advise/trial.h"
#include "apps/gpu_check/rank_records.h"

namespace paceline::gpu_check {
namespace {

using namespace std::chrono_literals;

constexpr auto kReadEvery = 50ms;
constexpr std::chrono::seconds kStartLimit{90};  // CUDA's libraries are large
constexpr std::chrono::seconds kTimeToEnd{20};
constexpr std::streamoff kShownOutput = 4000;

std::string end_of_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) return "";
  const std::streamoff size = file.tellg();
  file.seekg(std::max<std::streamoff>(0, size - kShownOutput));
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

// One start of the ranks, which carry out checks until a check fails.
class Run {
 public:
  Run(const RunOptions& options, std::span<const CheckSpec> checks, const Fd& signals)
      : options_(options), checks_(checks), launcher_(launch_options(), signals) {
    for (int rank = 0; rank < options.num_ranks; ++rank) {
      ranks_.push_back({.number = rank, .records = RankRecords(folder_.path(), rank)});
    }
  }

  // Passes the outcomes to `tell`, in order. Returns the number of checks that have an outcome.
  std::size_t follow(const std::function<void(CheckOutcome)>& tell) {
    Deadline deadline = ending_after(kStartLimit);
    std::size_t current = 0;
    bool has_begun = false;
    while (current < checks_.size()) {
      const bool has_ended = launcher_.wait(kReadEvery);
      for (Rank& rank : ranks_) rank.records.read();
      const CheckSpec& check = checks_[current];
      if (!has_begun && begun(check)) {
        has_begun = true;
        deadline = ending_after(limit_of(check));
      }
      if (is_complete(check)) {
        CheckOutcome outcome = conclude(check, "");
        const bool failed = outcome.verdict == Verdict::kFail;
        if (failed) end(outcome);
        tell(std::move(outcome));
        ++current;
        if (failed) return current;
        has_begun = false;
        deadline = ending_after(limit_of(check));
        continue;
      }
      if (!has_ended && !deadline.expired()) continue;
      const std::string problem = has_ended ? problem_of_end() : problem_of_time(check, has_begun);
      CheckOutcome outcome = conclude(check, problem);
      end(outcome);
      if (!has_begun && current == 0) return fail_all(outcome, tell);
      tell(std::move(outcome));
      return current + 1;
    }
    if (!checks_.back().is_fault) end_in_order(tell);
    return current;
  }

 private:
  struct Rank {
    int number = 0;
    RankRecords records;
  };

  apps::LauncherRunOptions launch_options() const {
    std::vector<std::string_view> names;
    for (const CheckSpec& check : checks_) names.push_back(check.name);
    std::vector<std::string> command = {options_.program, std::string(name_of(options_.setup)),
                                        fmt::format("{}", fmt::join(names, ",")), folder_.path()};
    if (options_.is_quick) command.emplace_back("--quick");
    auto variables = options_.variables;
    variables.emplace_back("PACELINE_BACKEND",
                           options_.setup == kNccl ? "cpu:paceline,cuda:nccl" : "paceline");
    return {.command = std::move(command),
            .num_ranks = options_.num_ranks,
            .num_threads = options_.num_threads,
            .folder = folder_.path(),
            .variables = std::move(variables)};
  }

  // Ends earlier if the time limit of the whole command does.
  Deadline ending_after(std::chrono::seconds limit) const {
    const Deadline own = Deadline::after(limit);
    return own.moment() < options_.total.moment() ? own : options_.total;
  }
  std::chrono::seconds limit_of(const CheckSpec& check) const {
    return options_.limit > 0s ? options_.limit : check.limit;
  }
  // The ranks that report on a check. In the check of a fault only rank 0 does, because another
  // rank fails on purpose.
  std::span<Rank> reporting(const CheckSpec& check) {
    return std::span(ranks_).first(check.is_fault ? 1 : ranks_.size());
  }
  bool begun(const CheckSpec& check) {
    return std::ranges::any_of(reporting(check), [&](const Rank& rank) {
      return rank.records.has_begun(std::string(check.name));
    });
  }
  const RankRecord* end_on(const Rank& rank, const CheckSpec& check) const {
    return rank.records.end_of(std::string(check.name));
  }
  bool is_complete(const CheckSpec& check) {
    return std::ranges::all_of(reporting(check),
                               [&](const Rank& rank) { return end_on(rank, check) != nullptr; });
  }

  // Combines the outcomes of all ranks; of several failures, the earliest counts. `problem`: why
  // some ranks have no outcome.
  CheckOutcome conclude(const CheckSpec& check, const std::string& problem) {
    CheckOutcome outcome{.name = fmt::format("{}/{}", name_of(options_.setup), check.name),
                         .what = std::string(check.what)};
    const RankRecord* first_failure = nullptr;
    double seconds = 0;
    for (const Rank& rank : reporting(check)) {
      const RankRecord* const record = end_on(rank, check);
      if (record == nullptr) continue;
      seconds = std::max(seconds, record->outcome.seconds);
      const Verdict verdict = record->outcome.verdict;
      const bool is_first = first_failure == nullptr || record->time < first_failure->time;
      if (verdict == Verdict::kFail ? is_first
                                    : first_failure == nullptr && verdict > outcome.verdict)
        take(outcome, *record, rank.number);
      if (verdict == Verdict::kFail && is_first) first_failure = record;
      if (rank.number == 0 && outcome.verdict == Verdict::kPass) take(outcome, *record, 0);
    }
    if (first_failure == nullptr && !problem.empty()) {
      outcome.verdict = Verdict::kFail;
      outcome.text = problem;
      outcome.advice = fmt::format("run it alone: paceline gpu-check --only {}", outcome.name);
    }
    outcome.seconds = seconds;
    return outcome;
  }
  void take(CheckOutcome& outcome, const RankRecord& record, int rank) const {
    outcome.verdict = record.outcome.verdict;
    outcome.text = record.outcome.text;
    // The library's errors already begin with the rank.
    if (outcome.verdict == Verdict::kFail && !outcome.text.starts_with("rank "))
      outcome.text = fmt::format("rank {}: {}", rank, outcome.text);
    outcome.advice = record.outcome.advice;
    outcome.figures = record.outcome.figures;
  }

  std::string problem_of_end() {
    const int code = launcher_.stop();
    return fmt::format("the ranks ended with exit code {}: {}", code, launcher_.failure_reason());
  }
  std::string problem_of_time(const CheckSpec& check, bool has_begun) {
    if (options_.total.expired())
      return "ended, because the time limit of the whole command has passed";
    if (!has_begun)
      return fmt::format("no rank has begun this check within {} s", kStartLimit.count());
    std::vector<int> late, done;
    for (const Rank& rank : reporting(check))
      (end_on(rank, check) == nullptr ? late : done).push_back(rank.number);
    return fmt::format(
        "hang: {} {} {} not finished within {} s{}", late.size() == 1 ? "rank" : "ranks",
        fmt::join(late, ", "), late.size() == 1 ? "has" : "have", limit_of(check).count(),
        done.empty() ? std::string() : fmt::format("; finished on {}", fmt::join(done, ", ")));
  }

  void end(CheckOutcome& outcome) {
    launcher_.stop();
    if (outcome.verdict == Verdict::kFail) outcome.output = end_of_file(folder_.path() + "/output");
  }

  // Called if the ranks did not begin any check: starting them again would not help.
  std::size_t fail_all(const CheckOutcome& first, const std::function<void(CheckOutcome)>& tell) {
    for (const CheckSpec& check : checks_) {
      CheckOutcome outcome = first;
      outcome.name = fmt::format("{}/{}", name_of(options_.setup), check.name);
      outcome.what = check.what;
      tell(std::move(outcome));
    }
    return checks_.size();
  }

  // After the last check, waits until the ranks have ended by themselves: their destructors are
  // checked as well.
  void end_in_order(const std::function<void(CheckOutcome)>& tell) {
    CheckOutcome outcome{.name = fmt::format("{}/end", name_of(options_.setup)),
                         .what = "the ranks exit without an error"};
    const Deadline deadline = Deadline::after(kTimeToEnd);
    bool has_ended = false;
    while (!has_ended && !deadline.expired()) has_ended = launcher_.wait(kReadEvery);
    const int code = launcher_.stop();
    if (!has_ended || code != 0) {
      outcome.verdict = Verdict::kFail;
      outcome.text = !has_ended
                         ? fmt::format("the ranks have not exited within {} s after their checks",
                                       kTimeToEnd.count())
                         : fmt::format("exit code {}: {}", code, launcher_.failure_reason());
      end(outcome);
    }
    tell(std::move(outcome));
  }

  const RunOptions& options_;
  const std::span<const CheckSpec> checks_;
  const apps::TemporaryFolder folder_;
  std::vector<Rank> ranks_;
  apps::LauncherRun launcher_;
};

}  // namespace

std::vector<CheckOutcome> run_checks(const RunOptions& options,
                                     const std::vector<CheckSpec>& checks, const Fd& signals,
                                     const std::function<void(const CheckOutcome&)>& tell) {
  std::vector<CheckOutcome> outcomes;
  const auto add = [&](CheckOutcome outcome) {
    tell(outcome);
    outcomes.push_back(std::move(outcome));
  };
  const std::span all(checks);
  for (std::size_t next = 0; next < all.size();) {
    if (options.total.expired()) {
      add({.name = fmt::format("{}/{}", name_of(options.setup), all[next].name),
           .what = std::string(all[next].what),
           .verdict = Verdict::kFail,
           .text = "not run, because the time limit of the whole command has passed"});
      ++next;
      continue;
    }
    // A fault damages its ranks, so each fault gets its own ranks.
    const auto is_fault = [](const CheckSpec& check) { return check.is_fault; };
    const auto rest = all.subspan(next);
    const auto end =
        rest.front().is_fault ? rest.begin() + 1 : std::ranges::find_if(rest, is_fault);
    next +=
        Run(options, rest.first(static_cast<std::size_t>(end - rest.begin())), signals).follow(add);
  }
  return outcomes;
}

}  // namespace paceline::gpu_check
