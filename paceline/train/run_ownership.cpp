#include "paceline/train/run_ownership.h"

#include "paceline/core/check.h"

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

std::string run_to_resume(const FoundStates& found) {
  if (found.on_disk.step || found.on_disk.mark) return run_of(found.on_disk);
  return newest_run(found.in_memory, [](const FoundState&) { return true; });
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
  Ownership own{.run = start.resume ? run_to_resume(found) : run_of_job(start.job, found),
                .stale_memory = {}};
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
