#include "paceline/training/train/run_ownership.h"

#include <fmt/format.h>

#include "paceline/engine/core/check.h"

namespace paceline::train {
namespace {

constexpr const char* kCure =
    "to continue that run, resume it (--resume); to begin another one, give it a directory of its "
    "own";

std::string run_of(const FoundState& state) { return state.mark ? state.mark->run : ""; }

bool is_of_job(const FoundState& state, const std::string& job) {
  return state.mark && state.mark->job == job;
}

void require_unused(const FoundStates& found) {
  check(!found.on_disk.step,
        "checkpoint directory {}: it has checkpoints already, the newest of step {}; {}",
        found.directory, found.on_disk.step.value_or(0), kCure);
  for (std::size_t rank = 0; rank < found.in_memory.size(); ++rank) {
    const auto& step = found.in_memory[rank].step;
    check(!step,
          "rank {}: the memory for checkpoints (PACELINE_MEMORY_CHECKPOINT) holds step {} of an "
          "earlier run; to continue that run, resume it (--resume); to begin another one, remove "
          "that file",
          rank, step.value_or(0));
  }
}

// Of the newest memory that `wanted` takes; empty without one.
template <class Wanted>
std::string newest_run(const std::vector<FoundState>& in_memory, Wanted wanted) {
  const FoundState* newest = nullptr;
  for (const FoundState& state : in_memory) {
    const bool newer = state.step && wanted(state) && (!newest || *state.step > *newest->step);
    if (newer) newest = &state;
  }
  return newest ? run_of(*newest) : "";
}

std::string words_for(const std::string& run, const std::optional<std::uint64_t>& seed) {
  return fmt::format("run {} (seed {})", run, seed ? fmt::to_string(*seed) : "not known");
}

// Of the newest checkpoint, where that is known to be another run's than the directory.
bool is_foreign(const FoundState& disk) {
  return disk.newest && disk.mark && !disk.newest->run.empty() && disk.newest->run != run_of(disk);
}

std::string run_to_resume(const JobStart& start, const FoundStates& found) {
  const FoundState& disk = found.on_disk;
  // A restart knows its run; a load passes over the checkpoints of others.
  if (is_foreign(disk) && !start.restarted) {
    const FoundOrigin& newest = *disk.newest;
    check(start.other_run,
          "checkpoint directory {}: its newest checkpoint, step-{:08}, is of {}, the directory is "
          "of {}; remove that checkpoint to continue the directory's run, or continue the "
          "checkpoint's with --resume-other-run",
          found.directory, newest.step, words_for(newest.run, newest.seed),
          words_for(disk.mark->run, disk.mark->seed));
    return newest.run;
  }
  if (disk.mark) return disk.mark->run;
  if (disk.step) return disk.newest ? disk.newest->run : "";
  return newest_run(found.in_memory, [](const FoundState&) { return true; });
}

std::optional<std::uint64_t> seed_of(const std::string& run, const FoundState& disk) {
  if (disk.mark && disk.mark->run == run && disk.mark->seed) return disk.mark->seed;
  const bool is_newest = disk.newest && (disk.newest->run == run || disk.newest->run.empty());
  return is_newest ? disk.newest->seed : std::nullopt;
}

std::string run_of_job(const std::string& job, const FoundStates& found) {
  if (is_of_job(found.on_disk, job)) return run_of(found.on_disk);
  check(!found.on_disk.step,
        "checkpoint directory {}: the launcher has started this job again, but the checkpoints "
        "there (the newest of step {}) are not the job's own; {}",
        found.directory, found.on_disk.step.value_or(0), kCure);
  std::string run =
      newest_run(found.in_memory, [&](const FoundState& state) { return is_of_job(state, job); });
  if (run.empty()) require_unused(found);  // also after a first start that was refused
  return run;
}

}  // namespace

Ownership find_ownership(const JobStart& start, const FoundStates& found) {
  if (!start.restarted && !start.resume) {
    require_unused(found);
    return {};
  }
  Ownership own;
  own.run = start.resume ? run_to_resume(start, found) : run_of_job(start.job, found);
  own.seed = seed_of(own.run, found.on_disk);
  for (std::size_t rank = 0; rank < found.in_memory.size(); ++rank) {
    const FoundState& state = found.in_memory[rank];
    if (!state.step || run_of(state) == own.run) continue;
    check(!start.resume,
          "rank {}: the memory for checkpoints (PACELINE_MEMORY_CHECKPOINT) holds step {} of "
          "another run than {}; resume with that run's directory, or remove the file",
          rank, *state.step, found.directory);
    own.stale_memory.push_back(static_cast<int>(rank));
  }
  return own;
}

}  // namespace paceline::train
