#include "paceline/train/checkpointer.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <utility>

#include <fmt/format.h>

#include <ATen/ATen.h>

#include "paceline/collectives/group/objects.h"
#include "paceline/collectives/group/shared_error.h"
#include "paceline/core/check.h"
#include "paceline/core/log.h"
#include "paceline/parallel/replica_guard.h"
#include "paceline/tensor/collectives.h"
#include "paceline/train/hook_snapshot.h"
#include "paceline/train/run_snapshot.h"

namespace paceline::train {
namespace {

constexpr std::chrono::minutes kLongestLock{2};

using Tensors = optim::NamedTensors;

// Collective: puts copies of rank 0's buffers in the place of this rank's. They are what a
// checkpoint on the disk has, and what all ranks evaluate with (DistributedDataParallel).
void take_buffers_of_rank_0(ProcessGroup& group, const torch::nn::Module& module,
                            Tensors& tensors) {
  const std::size_t first = module.named_parameters().size();
  for (std::size_t i = first; i < first + module.named_buffers().size(); ++i) {
    auto& tensor = tensors[i].second;
    if (group.rank() != 0) tensor = tensor.clone();
    broadcast(group, tensor, 0);
  }
}

at::Generator random_generator() { return at::detail::getDefaultCPUGenerator(); }

// The place of the states of `count` ranks' generators.
at::Tensor empty_states(std::int64_t count) {
  return at::empty({count, random_generator().get_state().numel()}, at::kByte);
}

// As on_rank, with rank 0's answer on every rank.
bool ask_rank_0(ProcessGroup& group, const std::function<bool()>& action) {
  std::int32_t answer = 0;
  on_rank(0, group, [&] { answer = action() ? 1 : 0; });
  group.broadcast(std::span(&answer, 1), 0);
  return answer != 0;
}

// Whether the last checkpoint was written. A job that another generation has replaced has nothing
// to continue for.
bool is_written(const std::optional<Error>& error) {
  if (error && error->code() == ErrorCode::kAborted) throw *error;
  return !error;
}

bool on_all(ProcessGroup& group, bool here) {
  std::int32_t value = here ? 1 : 0;
  group.all_reduce(std::span(&value, 1), ReduceOp::kMin);
  return value == 1;
}

// A rank that the saved run did not have keeps the state that its seed gave it.
void restore_random_state(ProcessGroup& group, at::Tensor states, int root) {
  auto num_states = states.defined() ? states.size(0) : std::int64_t{0};
  group.broadcast(std::span(&num_states, 1), root);
  auto generator = random_generator();
  const at::Tensor own = generator.get_state();
  if (group.rank() != root) states = at::empty({num_states, own.numel()}, at::kByte);
  broadcast(group, states, root);
  if (group.rank() < num_states) generator.set_state(states[group.rank()].clone());
}

// The newest state there is: at which step, and with whom.
struct Newest {
  std::int64_t step = kNone;
  int rank = 0;
  bool in_memory = false;

  static constexpr std::int64_t kNone = -1;
};

// Collective. Memory is preferred to a disk that has the same step.
Newest find_newest(ProcessGroup& group, std::int64_t in_memory, std::int64_t on_disk) {
  const std::array<std::int64_t, 2> mine = {in_memory, on_disk};
  std::vector<std::int64_t> all(mine.size() * static_cast<std::size_t>(group.world_size()));
  group.all_gather(std::span(mine), std::span(all));
  Newest newest;
  for (const bool memory : {true, false}) {
    for (int rank = 0; rank < group.world_size(); ++rank) {
      const std::int64_t step = all[2 * static_cast<std::size_t>(rank) + (memory ? 0 : 1)];
      if (step > newest.step) newest = {step, rank, memory};
    }
  }
  return newest;
}

// After a restart, the older generation's writer may be on a host that is gone, with the lock. The
// others wait for rank 0 meanwhile.
std::chrono::milliseconds lock_timeout(const ProcessGroup& group) {
  if (group.launch_environment().restart_count == 0) return {};
  return std::min<std::chrono::milliseconds>(kLongestLock, group.timeout() / 2);
}

}  // namespace

std::string memory_path() {
  const char* const path = std::getenv("PACELINE_MEMORY_CHECKPOINT");
  check(path != nullptr && *path != '\0',
        "checkpoints in memory need memory that outlives the ranks: start the job with `paceline "
        "run`, or name a file of each host's /dev/shm in PACELINE_MEMORY_CHECKPOINT");
  return path;
}

Checkpointer::Checkpointer(std::shared_ptr<ProcessGroup> group, const std::string& path,
                           const CheckpointerOptions& options)
    : group_(std::move(group)),
      path_(path),
      staging_(group_),
      compares_replicas_(options.compare_replicas),
      has_memory_(!options.memory.empty()) {
  on_rank(0, *group_, [&] {
    const auto& who = group_->launch_environment();
    directory_.emplace(path, CheckpointDirectoryOptions{.keep = options.keep,
                                                        .writer = {who.job_id, who.restart_count},
                                                        .lock_timeout = lock_timeout(*group_)});
    writer_.emplace(*directory_, group_->timeline());
  });
  if (has_memory_) open_memory(options.memory);
}

// Collective; every rank hears of a host's failure.
void Checkpointer::open_memory(const std::string& path) {
  std::optional<Error> failure;
  try {
    if (group_->local_rank() == 0) memory_.emplace(path);
  } catch (const Error& error) {
    failure = error;
  }
  throw_first_error(*group_, failure);
}

// Collective: what a rank has found is thrown on all. What is not sound is not saved.
void Checkpointer::require_sound(const TrainingState& state, const torch::nn::Module& module,
                                 const optim::Optimizer& optimizer) const {
  check(parts_.average == nullptr || !parts_.average->is_swapped_in(),
        "rank {}: no checkpoint is made while the average of the weights is swapped in",
        group_->rank());
  std::string problem;
  try {
    optimizer.verify_state();
  } catch (const Error& error) {
    problem = error.what();
  }
  const auto problems = all_gather_object(*group_, problem);
  for (std::size_t rank = 0; rank < problems.size(); ++rank) {
    if (problems[rank].empty()) continue;
    throw DamagedState(said_by(fmt::format("rank {}", rank), "checkpoint",
                               Error(ErrorCode::kCorrupt, problems[rank]))
                           .what());
  }
  if (!compares_replicas_) return;
  std::vector<NamedParameter> parameters;
  for (const auto& item : module.named_parameters())
    parameters.push_back({item.key(), item.value().detach()});
  require_equal_replicas(*group_, std::move(parameters), state.step);
}

optim::NamedTensors Checkpointer::average_state() const {
  return parts_.average == nullptr ? optim::NamedTensors() : parts_.average->state();
}

// Collective. On `root`, or, if there is none, on every rank.
optim::NamedTensors Checkpointer::hook_state(std::optional<int> root) const {
  if (parts_.reducer == nullptr) return {};
  return gather_hook_state(*group_, parts_.reducer->hook_state(), root);
}

bool Checkpointer::save(const TrainingState& state, const torch::nn::Module& module,
                        const optim::Optimizer& optimizer) {
  require_sound(state, module, optimizer);
  const auto states = gather(*group_, random_generator().get_state(), 0);
  const at::Tensor random_states =
      group_->rank() == 0 ? at::stack(states) : empty_states(group_->world_size());
  if (writer_) writer_->take_turn(state.step);
  const int world_size = group_->world_size();
  std::optional<optim::NamedTensors> optimizer_state;
  if (!can_stage_parts(optimizer)) optimizer_state = optimizer.state();
  const Tensors of_hook = hook_state(0);
  const HeldRun run = held_run(module, optimizer, optimizer_state ? &*optimizer_state : nullptr,
                               parts_, of_hook, random_states);
  const bool is_staged = staging_.stage(run.held);
  if (!is_staged && !optimizer_state) optimizer_state = optimizer.state();
  return ask_rank_0(*group_, [&] {
    if (is_staged) {
      Snapshot snapshot = words_of(world_size, state, optimizer, parts_);
      snapshot.tensors = staging_.staged(run.held);
      snapshot.run = mark_.run;
      writer_->save_in_place(state.step, std::move(snapshot));
    } else {
      auto owned =
          snapshot_of(world_size, state, tensors_of(module, *optimizer_state, average_state()),
                      optimizer, parts_, of_hook, random_states);
      owned.snapshot.run = mark_.run;
      writer_->save(state.step, owned.snapshot);
    }
    return is_written(writer_->take_error());
  });
}

// Whether all that have a part of the optimizer's state write it where rank 0 reads it.
bool Checkpointer::can_stage_parts(const optim::Optimizer& optimizer) const {
  const ProcessGroup* const owners = optimizer.shard_group();
  return owners != nullptr && staging_.includes(owners->world_ranks());
}

bool Checkpointer::finish() {
  return ask_rank_0(*group_, [&] { return is_written(writer_->finish()); });
}

std::optional<int> Checkpointer::room_on_disk() const {
  return directory_ ? directory_->room() : std::nullopt;
}

bool Checkpointer::save_to_memory(const TrainingState& state, const torch::nn::Module& module,
                                  const optim::Optimizer& optimizer) {
  check(has_memory_, "rank {}: this checkpointer was given no memory", group_->rank());
  require_sound(state, module, optimizer);
  const auto random_states = all_gather(*group_, random_generator().get_state());
  Tensors tensors = tensors_of(module, optimizer.state(), average_state());
  take_buffers_of_rank_0(*group_, module, tensors);
  const Tensors of_hook = hook_state(std::nullopt);
  bool kept = true;
  if (memory_) {
    auto owned = snapshot_of(group_->world_size(), state, tensors, optimizer, parts_, of_hook,
                             at::stack(random_states));
    add_mark(owned.snapshot.metadata);
    try {
      memory_->save(state.step, group_->launch_environment().restart_count, owned.snapshot);
    } catch (const Error& error) {
      kept = false;
      if (!std::exchange(said_memory_, true)) {
        log::error(fmt::format("step {}: the in-memory checkpoint failed: {}; not reported again",
                               state.step, error.what()));
      }
    }
  }
  return on_all(*group_, kept);
}

std::optional<std::int64_t> Checkpointer::newest_on_disk() const {
  const auto steps = directory_ ? directory_->list() : std::vector<std::int64_t>();
  return steps.empty() ? std::nullopt : std::optional(steps.back());
}

std::optional<LoadedCheckpoint> Checkpointer::load_from_disk(std::optional<Error>& refused) const {
  try {
    return directory_->load_newest(mark_.run);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kCorrupt) throw;
    refused = error;
    return std::nullopt;
  }
}

std::optional<RestoredRun> Checkpointer::restore(torch::nn::Module& module,
                                                 optim::Optimizer& optimizer) {
  finish();
  const optim::NamedTensors optimizer_state = optimizer.state();
  const optim::NamedTensors average = average_state();
  const Tensors tensors = tensors_of(module, optimizer_state, average);
  const auto writing = optimizer.writable_parameters();
  at::Tensor random_states;
  Tensors of_hook;
  std::string words;
  std::int64_t in_memory = memory_ ? memory_->newest_step().value_or(Newest::kNone) : Newest::kNone;
  std::int64_t on_disk = newest_on_disk().value_or(Newest::kNone);
  std::optional<Error> refused;  // why nothing on the disk can be used
  Newest newest;
  // Who finds that its newest does not verify offers what it has instead, and all choose again.
  while (words.empty()) {
    newest = find_newest(*group_, in_memory, on_disk);
    if (newest.step == Newest::kNone) {
      throw_error_of(*group_, 0, refused);
      return std::nullopt;
    }
    on_rank(newest.rank, *group_, [&] {
      const auto loaded = newest.in_memory ? memory_->load_newest() : load_from_disk(refused);
      std::int64_t& offered = newest.in_memory ? in_memory : on_disk;
      offered = loaded ? loaded->step : Newest::kNone;
      if (offered != newest.step) return;
      const TakenRun taken = take_over(*loaded, tensors, optimizer, parts_);
      random_states = taken.random_states;
      of_hook = taken.hook_state;
      words = taken.words;
    });
    words = broadcast_object(*group_, words, newest.rank);
  }
  for (const auto& [name, tensor] : tensors) broadcast(*group_, tensor, newest.rank);
  optimizer.set_state(optimizer_state);
  if (parts_.average != nullptr) parts_.average->set_state(average);
  take_words(words, optimizer, parts_);
  if (parts_.reducer != nullptr && parts_.reducer->has_hook()) {
    parts_.reducer->set_hook_state(
        scatter_hook_state(*group_, of_hook, newest.rank, hook_words_in(words)));
  }
  restore_random_state(*group_, random_states, newest.rank);
  return RestoredRun{state_in(words), newest.in_memory};
}

}  // namespace paceline::train
