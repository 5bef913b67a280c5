// CheckpointerCore::restore(): finds the newest state, lets all ranks read it at the same time, and
// applies it once all ranks have read their parts.

#include <limits>
#include <span>
#include <utility>

#include <fmt/format.h>

#include <ATen/ATen.h>

#include "paceline/engine/collectives/group/engine_group.h"
#include "paceline/engine/collectives/group/object_collectives.h"
#include "paceline/engine/collectives/purpose.h"
#include "paceline/engine/core/check.h"
#include "paceline/engine/core/dtype_traits.h"
#include "paceline/engine/core/log.h"
#include "paceline/training/optim/optimizer_core.h"
#include "paceline/training/tensor/random_state.h"
#include "paceline/training/tensor/tensor_marks.h"
#include "paceline/training/tensor/tensor_view.h"
#include "paceline/training/train/checkpoints/checkpointer_core.h"
#include "paceline/training/train/checkpoints/run_snapshot.h"
#include "paceline/training/train/run_parts.h"

namespace paceline::train {

namespace {

constexpr std::int64_t kNone = -1;  // no step

std::byte* bytes_of(const at::Tensor& tensor) { return static_cast<std::byte*>(tensor.data_ptr()); }

}  // namespace

struct CheckpointerCore::Staged {
  std::vector<WantedBox> wanted;    // the boxes of the run come first, in their order
  StagingMemory memory;             // holds the boxes of the run
  at::Tensor random_state;          // this rank's state; undefined: the saved run had no such rank
  optim::NamedTensors hook;         // the tensors of gather_hook_state(), on rank 0
  std::vector<std::string> states;  // the bytes of the attached states
};

// Collective. Error(kInvalid) on every rank unless the checkpoint belongs to a run like this one.
void CheckpointerCore::require_run(const Manifest& saved, const RunBoxes& boxes,
                                   const optim::Optimizer* optimizer) const {
  std::vector<HeldBox> mine;
  for (const HeldMemory& one : boxes.boxes) {
    if (mine.empty() || mine.back().name != one.held.name) mine.push_back(one.held);
  }
  const auto all = gather_objects(*group_, encode(mine), 0);
  on_rank(0, *group_, [&] {
    std::vector<HeldBox> wanted;
    for (const std::string& text : all) {
      for (HeldBox& one : decode_held(text)) wanted.push_back(std::move(one));
    }
    require_same_tensors(saved, wanted);
  });
  std::optional<Error> failure;
  try {
    require_compatible(saved, optimizer, parts_);
  } catch (const Error& error) {
    failure = error;
  }
  paceline::detail::throw_first_error(*group_, failure);
}

CheckpointerCore::Staged CheckpointerCore::stage(const Manifest& saved,
                                                 const RunBoxes& boxes) const {
  Staged staged;
  std::size_t bytes = 0;
  for (const HeldMemory& one : boxes.boxes)
    bytes += static_cast<std::size_t>(num_elements(one.held.box)) * size_of(one.held.dtype);
  std::byte* place = staged.memory.reserve(bytes);
  for (const HeldMemory& one : boxes.boxes) {
    staged.wanted.push_back({one.held.name, one.held.box, place});
    place += static_cast<std::size_t>(num_elements(one.held.box)) * size_of(one.held.dtype);
  }
  if (const StoredTensor* const states = saved.find(kRandomStates);
      states != nullptr && states->shape.size() == 2 && group_->rank() < states->shape[0]) {
    staged.random_state = at::empty({states->shape[1]}, at::kByte);
    staged.wanted.push_back({kRandomStates,
                             {{group_->rank(), 0}, {1, states->shape[1]}},
                             bytes_of(staged.random_state)});
  }
  staged.states.reserve(parts_.states.size());  // `wanted` points into these strings
  for (const AttachedState& state : parts_.states) {
    const StoredTensor* const stored = saved.find(kStates + state.name);
    if (stored == nullptr)
      fail(ErrorCode::kCorrupt, "the checkpoint lists \"{}\" and lacks its tensor", state.name);
    std::string& bytes = staged.states.emplace_back(stored->bytes(), '\0');
    if (bytes.empty()) continue;
    staged.wanted.push_back(
        {stored->name, whole_box(stored->shape), reinterpret_cast<std::byte*>(bytes.data())});
  }
  if (group_->rank() != 0) return staged;
  for (const StoredTensor& tensor : saved.tensors) {
    if (!tensor.name.starts_with(kHookTensors)) continue;
    const at::Tensor values =
        at::empty(tensor.shape, at::TensorOptions(to_scalar_type(tensor.dtype)));
    staged.hook.emplace_back(tensor.name.substr(std::string_view(kHookTensors).size()), values);
    staged.wanted.push_back({tensor.name, whole_box(tensor.shape), bytes_of(values)});
  }
  return staged;
}

// Collective. Applies a saved run that every rank has staged.
void CheckpointerCore::take_over(const Manifest& saved, const Staged& staged, const RunBoxes& boxes,
                                 const View& run) {
  const auto take = [&](bool takes_steps) {
    for (std::size_t i = 0; i < boxes.boxes.size(); ++i) {
      const HeldMemory& one = boxes.boxes[i];
      if (is_steps(one.held.name) != takes_steps || num_elements(one.held.box) == 0) continue;
      copy_elements(one.place, {staged.wanted[i].to, row_major_strides(one.held.box.sizes)},
                    one.held.box.sizes, size_of(one.held.dtype));
    }
  };
  take(true);
  std::optional<Error> failure;
  try {
    require_same_groups(boxes.steps, run.module, run.optimizer);
    for (std::size_t i = 0; i < parts_.states.size(); ++i)
      detail::load_state(parts_.states[i], staged.states[i]);
  } catch (const Error& error) {
    failure = error;
  }
  paceline::detail::throw_first_error(*group_, failure);
  group_->barrier();  // afterwards no rank reads parameters that another rank writes
  if (run.optimizer != nullptr) core_of(*run.optimizer).begin_loading();
  take(false);
  group_->barrier();  // with one copy per host, other ranks have written parts of the parameters
  for (const at::Tensor& tensor : boxes.tensors) count_write(tensor);
  adopt(boxes, run.optimizer, parts_);
  take_words(saved.metadata, run.optimizer, parts_);
  if (parts_.reducer != nullptr && parts_.reducer->has_hook()) {
    parts_.reducer->set_hook_state(
        scatter_hook_state(*group_, staged.hook, 0, hook_words_in(saved.metadata)));
  }
  if (!staged.random_state.defined()) return;
  auto generator = at::detail::getDefaultCPUGenerator();
  generator.set_state(staged.random_state);
}

std::optional<RestoredRun> CheckpointerCore::restore(torch::nn::Module& module,
                                                     optim::Optimizer& optimizer) {
  return restore(View{module, &optimizer});
}

std::optional<RestoredRun> CheckpointerCore::restore(const View& run) {
  engine(*group_).enter(kRestore);
  finish();
  ProcessGroup& waiting = team_.waiting_group();
  const RunBoxes boxes = boxes_of_rank(run.module, run.optimizer, parts_, RunShare::kLoad);
  std::string refused;  // on rank 0: one line for each checkpoint that cannot be used
  const auto refuse = [&](std::int64_t step, const std::string& reason) {
    log::error(fmt::format("checkpoint of step {} refused: {}", step, reason));
    refused += fmt::format("\n  step {}: {}", step, reason);
  };
  const auto newest_before = [&](std::int64_t step) {
    const auto* const directory = team_.directory();
    return directory != nullptr ? directory->newest_before(step, mark_.run, refuse) : std::nullopt;
  };
  std::optional<Manifest> on_disk = newest_before(std::numeric_limits<std::int64_t>::max());
  // Rank 0 offers the newest checkpoint on the disk, then older ones until one passes verification.
  while (true) {
    std::int64_t step_on_disk = on_disk ? on_disk->step : kNone;
    waiting.broadcast(std::span(&step_on_disk, 1), 0);
    // If the memory and the disk have the same step, the memory is used.
    auto manifest = memory_ ? memory_->newest(step_on_disk, mark_.run) : std::nullopt;
    const bool in_memory = manifest.has_value();
    if (!in_memory && step_on_disk == kNone) {
      std::optional<Error> none;
      if (!refused.empty()) {
        none.emplace(ErrorCode::kCorrupt,
                     fmt::format("checkpoint directory {}: no checkpoint can be used:{}",
                                 options_.folder, refused));
      }
      paceline::detail::throw_error_of(*group_, 0, none);
      return std::nullopt;
    }
    if (!in_memory) {
      const std::string text =
          broadcast_object(*group_, on_disk ? to_json(*on_disk) : std::string(), 0);
      manifest = parse_manifest(text, "the manifest from rank 0");
    }
    require_run(*manifest, boxes, run.optimizer);
    Staged staged = stage(*manifest, boxes);
    try {
      if (in_memory) {
        memory_->read(staged.wanted);
        bytes_read_ = 0;
      } else {
        bytes_read_ = team_.read(*manifest, staged.wanted);
      }
    } catch (const Error& error) {  // thrown on every rank
      const bool is_damaged =
          error.code() == ErrorCode::kCorrupt || error.code() == ErrorCode::kSystem;
      if (in_memory || !is_damaged) throw;
      if (group_->rank() == 0) refuse(step_on_disk, error.what());
      on_disk = newest_before(step_on_disk);
      continue;
    }
    take_over(*manifest, staged, boxes, run);
    return RestoredRun{state_in(manifest->metadata), in_memory};
  }
}

}  // namespace paceline::train
