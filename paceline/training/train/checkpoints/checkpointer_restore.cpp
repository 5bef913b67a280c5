// Restores a run: finds the newest state, reads it on all ranks at once, and takes it over once all
// of it is there.

#include <limits>
#include <span>
#include <utility>

#include <fmt/format.h>

#include <ATen/ATen.h>

#include "paceline/engine/collectives/group/object_collectives.h"
#include "paceline/engine/core/check.h"
#include "paceline/engine/core/log.h"
#include "paceline/training/tensor/tensor_marks.h"
#include "paceline/training/tensor/tensor_view.h"
#include "paceline/training/train/checkpoints/checkpointer.h"
#include "paceline/training/train/checkpoints/run_snapshot.h"

namespace paceline::train {

namespace {

constexpr std::int64_t kNone = -1;  // no step

SavedRun saved_in(const Manifest& manifest) {
  SavedRun saved{.step = manifest.step, .tensors = {}, .metadata = manifest.metadata};
  for (const StoredTensor& tensor : manifest.tensors)
    saved.tensors.push_back({tensor.name, tensor.dtype, tensor.shape, {}});
  return saved;
}

const HeldBox* find(const SavedRun& saved, const std::string& name) {
  for (const HeldBox& tensor : saved.tensors) {
    if (tensor.name == name) return &tensor;
  }
  return nullptr;
}

std::byte* bytes_of(const at::Tensor& tensor) { return static_cast<std::byte*>(tensor.data_ptr()); }

}  // namespace

struct Checkpointer::Staged {
  std::vector<WantedBox> wanted;  // first the boxes of the run, in their order
  StagingMemory memory;           // for these boxes
  at::Tensor random_state;        // this rank's; undefined: the saved run had no such rank
  optim::NamedTensors hook;       // on rank 0, as gather_hook_state() returned it
};

// Collective.
void Checkpointer::require_run(const SavedRun& saved, const RunBoxes& boxes,
                               const optim::Optimizer& optimizer) const {
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
    require_own(saved, optimizer, parts_);
  } catch (const Error& error) {
    failure = error;
  }
  throw_first_error(*group_, failure);
}

Checkpointer::Staged Checkpointer::stage(const SavedRun& saved, const RunBoxes& boxes) const {
  Staged staged;
  std::size_t bytes = 0;
  for (const HeldMemory& one : boxes.boxes)
    bytes += static_cast<std::size_t>(num_elements(one.held.box)) * size_of(one.held.dtype);
  std::byte* place = staged.memory.reserve(bytes);
  for (const HeldMemory& one : boxes.boxes) {
    staged.wanted.push_back({one.held.name, one.held.box, place});
    place += static_cast<std::size_t>(num_elements(one.held.box)) * size_of(one.held.dtype);
  }
  if (const HeldBox* const states = find(saved, kRandomStates);
      states != nullptr && states->shape.size() == 2 && group_->rank() < states->shape[0]) {
    staged.random_state = at::empty({states->shape[1]}, at::kByte);
    staged.wanted.push_back({kRandomStates,
                             {{group_->rank(), 0}, {1, states->shape[1]}},
                             bytes_of(staged.random_state)});
  }
  if (group_->rank() != 0) return staged;
  for (const HeldBox& tensor : saved.tensors) {
    if (!tensor.name.starts_with(kHookTensors)) continue;
    const at::Tensor values =
        at::empty(tensor.shape, at::TensorOptions(to_scalar_type(tensor.dtype)));
    staged.hook.emplace_back(tensor.name.substr(std::string_view(kHookTensors).size()), values);
    staged.wanted.push_back({tensor.name, whole_box(tensor.shape), bytes_of(values)});
  }
  return staged;
}

// Collective.
void Checkpointer::take_over(const SavedRun& saved, const Staged& staged, const RunBoxes& boxes,
                             torch::nn::Module& module, optim::Optimizer& optimizer) {
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
    require_same_groups(boxes.steps, module, optimizer);
  } catch (const Error& error) {
    failure = error;
  }
  throw_first_error(*group_, failure);
  group_->barrier();  // no rank still reads parameters that others are about to write
  optimizer.begin_loading();
  take(false);
  group_->barrier();  // with one copy of the parameters, other ranks have written parts of it
  for (const at::Tensor& tensor : boxes.tensors) count_write(tensor);
  adopt(boxes, optimizer, parts_);
  take_words(saved.metadata, optimizer, parts_);
  if (parts_.reducer != nullptr && parts_.reducer->has_hook()) {
    parts_.reducer->set_hook_state(
        scatter_hook_state(*group_, staged.hook, 0, hook_words_in(saved.metadata)));
  }
  if (!staged.random_state.defined()) return;
  auto generator = at::detail::getDefaultCPUGenerator();
  generator.set_state(staged.random_state);
}

std::optional<RestoredRun> Checkpointer::restore(torch::nn::Module& module,
                                                 optim::Optimizer& optimizer) {
  finish();
  ProcessGroup& waiting = team_.waiting_group();
  const RunBoxes boxes = boxes_to_load(module, optimizer, parts_);
  std::string refused;  // rank 0's: a line for each checkpoint that cannot be used
  const auto refuse = [&](std::int64_t step, const std::string& reason) {
    log::error(fmt::format("checkpoint of step {} refused: {}", step, reason));
    refused += fmt::format("\n  step {}: {}", step, reason);
  };
  const auto newest_before = [&](std::int64_t step) {
    const auto* const directory = team_.directory();
    return directory != nullptr ? directory->newest_before(step, mark_.run, refuse) : std::nullopt;
  };
  std::optional<Manifest> on_disk = newest_before(std::numeric_limits<std::int64_t>::max());
  // Rank 0 offers the newest checkpoint on the disk; if that does not verify, the one before it.
  while (true) {
    std::int64_t step_on_disk = on_disk ? on_disk->step : kNone;
    waiting.broadcast(std::span(&step_on_disk, 1), 0);
    // Memory is preferred to a disk that has the same step.
    auto manifest = memory_ ? memory_->newest(step_on_disk, mark_.run) : std::nullopt;
    const bool in_memory = manifest.has_value();
    if (!in_memory && step_on_disk == kNone) {
      std::optional<Error> none;
      if (!refused.empty()) {
        none.emplace(ErrorCode::kCorrupt,
                     fmt::format("checkpoint directory {}: no checkpoint can be used:{}",
                                 options_.folder, refused));
      }
      throw_error_of(*group_, 0, none);
      return std::nullopt;
    }
    if (!in_memory) {
      const std::string text =
          broadcast_object(*group_, on_disk ? to_json(*on_disk) : std::string(), 0);
      manifest = parse_manifest(text, "the manifest from rank 0");
    }
    const SavedRun saved = saved_in(*manifest);
    require_run(saved, boxes, optimizer);
    Staged staged = stage(saved, boxes);
    try {
      if (in_memory) {
        memory_->read(staged.wanted);
      } else {
        bytes_read_ = team_.read(*manifest, staged.wanted);
      }
    } catch (const Error& error) {  // on every rank
      const bool is_damaged =
          error.code() == ErrorCode::kCorrupt || error.code() == ErrorCode::kSystem;
      if (in_memory || !is_damaged) throw;
      if (group_->rank() == 0) refuse(step_on_disk, error.what());
      on_disk = newest_before(step_on_disk);
      continue;
    }
    take_over(saved, staged, boxes, module, optimizer);
    return RestoredRun{state_in(saved.metadata), in_memory};
  }
}

}  // namespace paceline::train
