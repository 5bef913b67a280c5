#include <limits>

#include <fmt/format.h>

#include "paceline/engine/collectives/group/engine_group.h"
#include "paceline/engine/collectives/group/object_collectives.h"
#include "paceline/engine/collectives/purpose.h"
#include "paceline/engine/core/authentication.h"
#include "paceline/engine/core/check.h"
#include "paceline/engine/core/json_text.h"
#include "paceline/engine/core/log.h"
#include "paceline/training/train/checkpoints/checkpointer_core.h"
#include "paceline/training/train/checkpoints/run_snapshot.h"
#include "paceline/training/train/run_parts.h"

namespace paceline::train {

namespace {

constexpr const char* kCure =
    "to continue that run, resume it (--resume, CheckpointOptions::resume); to begin another one, "
    "give it a directory of its "
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
          "earlier run; to continue that run, resume it (--resume, CheckpointOptions::resume); to "
          "begin another one, remove "
          "that file",
          rank, step.value_or(0));
  }
}

// Returns the run of the newest memory that `wanted` accepts; empty if there is none.
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

// Whether the newest checkpoint names a run that is not the directory's.
bool is_foreign(const FoundState& disk) {
  return disk.newest && disk.mark && !disk.newest->run.empty() && disk.newest->run != run_of(disk);
}

std::string run_to_resume(const JobStart& start, const FoundStates& found) {
  const FoundState& disk = found.on_disk;
  // A restart knows its run, and skips checkpoints of other runs when it loads.
  if (is_foreign(disk) && !start.restarted) {
    const FoundOrigin& newest = *disk.newest;
    check(start.other_run,
          "checkpoint directory {}: its newest checkpoint, step-{:08}, belongs to {}, but the "
          "directory belongs to {}; remove that checkpoint to continue the directory's run, or "
          "continue the "
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
  if (run.empty()) require_unused(found);  // for instance if the first start was rejected
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
    check(
        !start.resume,
        "rank {}: the memory for checkpoints (PACELINE_MEMORY_CHECKPOINT) holds step {} of a "
        "run other than that of {}; resume with the directory of the run in the memory, or remove "
        "the file",
        rank, *state.step, found.directory);
    own.stale_memory.push_back(static_cast<int>(rank));
  }
  return own;
}

// CheckpointerCore::begin(): finds the state that exists, and decides whether this job may continue
// it.

namespace {

constexpr std::size_t kRunIdBytes = 8;
constexpr const char* kRun = "run";
constexpr const char* kJob = "job";

// Returns the mark of a checkpoint in memory, from its manifest. A directory has a separate file
// for its mark.
std::optional<RunMark> mark_in(const Manifest& manifest) {
  if (manifest.run.empty()) return std::nullopt;
  RunMark mark{.run = manifest.run, .job = {}, .seed = {}};
  const auto job = manifest.metadata.find(kJobWord);
  if (job != manifest.metadata.end()) mark.job = job->second;
  return mark;
}

template <class Value>
void put(nlohmann::json& json, const char* key, const std::optional<Value>& value) {
  if (value) json[key] = *value;
}

template <class Value>
void take(const nlohmann::json& json, const char* key, std::optional<Value>& value) {
  if (json.contains(key)) value = json[key].get<Value>();
}

nlohmann::json to_json(const FoundState& state) {
  auto json = nlohmann::json::object();
  put(json, "step", state.step);
  if (state.mark) {
    auto& mark = json["mark"] = {{kRun, state.mark->run}};
    put(mark, kJob, state.mark->job);
    put(mark, "seed", state.mark->seed);
  }
  if (state.newest) {
    auto& newest = json["newest"] = {{"step", state.newest->step}, {kRun, state.newest->run}};
    put(newest, "seed", state.newest->seed);
  }
  return json;
}

FoundState to_found(const nlohmann::json& json) {
  FoundState state;
  take(json, "step", state.step);
  if (json.contains("mark")) {
    state.mark = RunMark{.run = json["mark"][kRun], .job = {}, .seed = {}};
    take(json["mark"], kJob, state.mark->job);
    take(json["mark"], "seed", state.mark->seed);
  }
  if (json.contains("newest")) {
    const auto& newest = json["newest"];
    state.newest = FoundOrigin{.step = newest["step"], .run = newest[kRun], .seed = {}};
    take(newest, "seed", state.newest->seed);
  }
  return state;
}

}  // namespace

FoundState CheckpointerCore::find_on_disk() const {
  FoundState found;
  const auto* const directory = team_.directory();
  if (directory == nullptr) return found;
  if (const auto steps = directory->list(); !steps.empty()) found.step = steps.back();
  found.mark = directory->mark();
  const auto ignore = [](std::int64_t, const std::string&) {};  // restore() logs the reasons
  if (const auto newest =
          directory->newest_before(std::numeric_limits<std::int64_t>::max(), "", ignore)) {
    found.newest = FoundOrigin{newest->step, newest->run, seed_in(newest->metadata)};
  }
  return found;
}

// Collective. Returns the states that all ranks find.
FoundStates CheckpointerCore::find_states() {
  ProcessGroup& waiting = team_.waiting_group();
  const FoundState on_disk = find_on_disk();
  FoundState in_memory;
  if (const auto newest = memory_ ? memory_->newest_here() : std::nullopt) {
    in_memory = {newest->step, mark_in(*newest)};
  }
  const auto mine = nlohmann::json::array({to_json(on_disk), to_json(in_memory)});
  FoundStates found{.directory = options_.folder, .on_disk = {}, .in_memory = {}};
  for (const std::string& text : all_gather_object(waiting, json_text(mine))) {
    const auto theirs = parse_json(text);
    if (found.in_memory.empty()) found.on_disk = to_found(theirs[0]);
    found.in_memory.push_back(to_found(theirs[1]));
  }
  return found;
}

// Called after a first start was rejected, because an older job with the same name may have marked
// the directory. Removes that name, so that the launcher's restarts of this job do not continue the
// older job's checkpoints.
void CheckpointerCore::disown(const JobStart& start, const FoundStates& found) {
  const auto& mark = found.on_disk.mark;
  if (team_.directory() == nullptr || start.restarted || !mark || mark->job != start.job) return;
  try {
    team_.directory()->set_mark({.run = mark->run, .job = {}, .seed = mark->seed});
  } catch (const Error& error) {
    log::error(error.what());
  }
}

// Collective. Discards stale memory, and marks the directory as belonging to this run and job.
void CheckpointerCore::take_run(const JobStart& start, const Ownership& own,
                                const FoundStates& found, std::uint64_t seed) {
  for (const int rank : own.stale_memory) {
    if (rank != group_->rank()) continue;
    log::warning(fmt::format("{}: discarded the state of another run, of step {}", memory_->path(),
                             *found.in_memory[static_cast<std::size_t>(rank)].step));
    memory_->forget();
  }
  mark_.job = start.job;
  on_rank(0, team_.waiting_group(), [&] {
    RunMark mark{.run = own.run, .job = start.job, .seed = own.seed};
    if (mark.run.empty()) {
      mark.run = random_hex(kRunIdBytes);
      mark.seed = own.seed.value_or(seed);
    }
    if (mark != found.on_disk.mark) team_.directory()->set_mark(mark);
    mark_.run = mark.run;
  });
  mark_.run = broadcast_object(*group_, mark_.run, 0);
}

std::optional<RestoredRun> CheckpointerCore::begin(torch::nn::Module& module,
                                                   optim::Optimizer& optimizer,
                                                   std::uint64_t seed) {
  engine(*group_).enter(kBegin);
  return begin(View{module, &optimizer}, seed);
}

std::optional<RestoredRun> CheckpointerCore::begin(const View& run, std::uint64_t seed) {
  const auto& environment = engine(*group_).launch_environment();
  const JobStart start{.job = environment.job_id,
                       .restarted = environment.restart_count > 0,
                       .resume = options_.resume,
                       .other_run = options_.resume_other_run};
  const FoundStates found = find_states();
  try {
    take_run(start, find_ownership(start, found), found, seed);
  } catch (const Error&) {
    disown(start, found);
    throw;
  }
  if (!start.resume && !start.restarted) return std::nullopt;
  return restore(run);
}

}  // namespace paceline::train
