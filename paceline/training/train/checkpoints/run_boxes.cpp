#include "paceline/training/train/checkpoints/run_boxes.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <unordered_map>
#include <utility>

#include <fmt/format.h>

#include <ATen/ATen.h>

#include "paceline/engine/core/check.h"
#include "paceline/engine/core/error_text.h"
#include "paceline/training/models/divided_layer.h"
#include "paceline/training/models/layer_functions.h"
#include "paceline/training/models/layers.h"
#include "paceline/training/optim/optimizer_core.h"
#include "paceline/training/tensor/tensor_marks.h"
#include "paceline/training/tensor/tensor_view.h"
#include "paceline/training/train/run_parts.h"

namespace paceline::train {

namespace {

using models::Division;

constexpr const char* kOptimizerSteps = "optimizer.steps.";
constexpr std::chrono::minutes kCopyTimeout{5};

// A parameter's name in checkpoints, and the part of the whole parameter that this rank has.
struct Identity {
  std::string name;
  std::optional<Division> division;
};

// Elements [first, first + count) of a dense tensor, in the order of its memory.
struct Run {
  at::Tensor like;            // has the tensor's shape and strides
  std::byte* data = nullptr;  // the first of these elements
  std::int64_t first = 0;
  std::int64_t count = 0;
};

// Cuts a box of this rank's part where one section of the divided dimension ends and the next
// begins (models::Division). Returns the parts in the coordinates of the whole tensor, each with
// its offset in the box.
std::vector<std::pair<Box, std::int64_t>> in_whole(const Box& box,
                                                   const std::optional<Division>& division) {
  if (!division) return {{box, 0}};
  std::vector<std::pair<Box, std::int64_t>> parts;
  const auto dim = static_cast<std::size_t>(division->dim);
  const std::int64_t begin = box.offsets[dim], end = begin + box.sizes[dim];
  std::int64_t here = 0, there = 0;  // the section's offsets in the part and in the whole
  for (const std::int64_t length : division->sections) {
    const std::int64_t own = length / division->parts;
    const std::int64_t first = std::max(begin, here), last = std::min(end, here + own);
    if (first < last) {
      Box part = box;
      part.offsets[dim] = there + division->part * own + first - here;
      part.sizes[dim] = last - first;
      parts.emplace_back(std::move(part), first - begin);
    }
    here += own;
    there += length;
  }
  return parts;
}

class Collector {
 public:
  Collector(RunBoxes& run, const torch::nn::Module& module) : run_(run) {
    models::visit_parameters(
        module, [&](const std::string& name, at::Tensor& parameter, const auto& division) {
          identities_.try_emplace(parameter.unsafeGetTensorImpl(), Identity{name, division});
        });
  }

  Identity identity(const at::Tensor& parameter, std::size_t number) const {
    const auto found = identities_.find(parameter.unsafeGetTensorImpl());
    return found == identities_.end() ? Identity{fmt::format("parameter.{}", number), {}}
                                      : found->second;
  }

  // Adds a tensor, or the range of its elements that is in `memory`.
  void add(const std::string& name, const at::Tensor& memory,
           const std::optional<Division>& division = {}, const std::optional<Run>& run = {}) {
    if (!memory.is_cpu()) {
      const at::Tensor copy = run_.on_device.copy_of(memory);
      if (!run) return add(name, copy, division);
      Run of_copy = *run;
      of_copy.data = static_cast<std::byte*>(copy.data_ptr());
      return add(name, copy, division, of_copy);
    }
    run_.tensors.push_back(memory);
    const at::Tensor& like = run ? run->like : memory;
    const auto shape = like.sizes().vec();
    const Box all = whole_box(shape);
    StridedPointer place{static_cast<std::byte*>(memory.data_ptr()), like.strides().vec()};
    std::vector<Box> boxes;
    if (!run) {
      boxes.push_back(all);
    } else if (run->count > 0) {
      place.data = run->data - run->first * static_cast<std::int64_t>(memory.element_size());
      boxes = boxes_of_run(shape, place.strides, run->first, run->count);
    }
    HeldBox held{name,
                 to_dtype(memory.scalar_type()),
                 division ? division->whole_sizes(like.sizes()) : shape,
                 {}};
    if (boxes.empty() || num_elements(all) == 0) {
      if (held.shape.empty()) return;  // another rank holds this scalar, with its name and shape
      held.box = {std::vector<std::int64_t>(held.shape.size()),
                  std::vector<std::int64_t>(held.shape.size())};
      run_.boxes.push_back({held, {}});
      return;
    }
    for (const Box& box : boxes) {
      for (auto& [part, begin] : in_whole(box, division)) {
        Box here = box;
        if (division) {
          const auto dim = static_cast<std::size_t>(division->dim);
          here.offsets[dim] += begin;
          here.sizes[dim] = part.sizes[dim];
        }
        held.box = part;
        run_.boxes.push_back({held, place_of_part(place, all, here, memory.element_size())});
      }
    }
  }

 private:
  RunBoxes& run_;
  std::unordered_map<const void*, Identity> identities_;
};

// Splits "exp_avg.3" into the kind of state and the number of the parameter.
std::pair<std::string, std::size_t> split_name(const std::string& name) {
  const auto dot = name.rfind('.');
  return {name.substr(0, dot), std::stoul(name.substr(dot + 1))};
}

// Adds the part of the optimizer's state that this rank keeps.
void add_state(Collector& collector, const optim::Optimizer& optimizer) {
  for (const optim::StatePart& part : core_of(optimizer).state_parts()) {
    const auto [kind, number] = split_name(part.name);
    const Identity identity = collector.identity(optimizer.parameters()[number], number);
    collector.add(fmt::format("optimizer.{}.{}", kind, identity.name), part.elements,
                  identity.division,
                  Run{part.like, static_cast<std::byte*>(part.elements.data_ptr()), part.first,
                      part.elements.numel()});
  }
}

void add_steps(Collector& collector, RunBoxes& run, const optim::Optimizer& optimizer) {
  const auto count = static_cast<std::int64_t>(optimizer.parameters().size());
  run.steps = at::empty({count, 2}, at::kLong);
  run.steps.select(1, 0).copy_(core_of(optimizer).num_steps().second);
  for (std::int64_t i = 0; i < count; ++i) {
    const auto number = static_cast<std::size_t>(i);
    run.steps[i][1] = static_cast<std::int64_t>(optimizer.group_of(number));
    collector.add(kOptimizerSteps + collector.identity(optimizer.parameters()[number], number).name,
                  run.steps[i]);
  }
}

void add_average(Collector& collector, RunBoxes& run, const RunParts& parts) {
  if (parts.average == nullptr) return;
  run.average = parts.average->state();
  for (std::size_t i = 0; i + 1 < run.average.size(); ++i) {
    const Identity identity = collector.identity(parts.average->parameters()[i], i);
    collector.add("average.weight." + identity.name, run.average[i].second, identity.division);
  }
  collector.add("average." + run.average.back().first, run.average.back().second);
}

}  // namespace

RunBoxes boxes_of_rank(const torch::nn::Module& module, const optim::Optimizer* optimizer,
                       const RunParts& parts, RunShare share) {
  const at::NoGradGuard no_grad;
  RunBoxes boxes;
  Collector collector(boxes, module);
  const bool has_alike = share != RunShare::kOwnState;
  if (has_alike) {
    const auto numbers = numbers_by_tensor(optimizer != nullptr ? optimizer->parameters()
                                                                : std::vector<at::Tensor>());
    models::visit_parameters(module, [&](const std::string& parameter_name, at::Tensor& parameter,
                                         const auto& division) {
      const std::string name = kModelTensors.data() + parameter_name;
      const at::Tensor memory = parameter.detach();
      const auto number = numbers.find(parameter.unsafeGetTensorImpl());
      if (number == numbers.end() || !core_of(*optimizer).shares_parameters())
        return collector.add(name, memory, division);
      auto runs = share == RunShare::kLoad ? core_of(*optimizer).elements_to_load(number->second)
                                           : core_of(*optimizer).elements_to_save(number->second);
      if (runs.empty()) runs.emplace_back(0, 0);  // an empty box: the rank holds no elements
      for (const auto& [first, last] : runs) {
        const at::Tensor elements = core_of(*optimizer).elements(number->second, {first, last});
        collector.add(
            name, elements, division,
            Run{memory, static_cast<std::byte*>(elements.data_ptr()), first, last - first});
      }
    });
    for (HeldMemory& parameter : boxes.boxes) parameter.must_be_finite = true;
  }
  if (share == RunShare::kLoad || share == RunShare::kFirst) {
    for (const auto& item : module.named_buffers())
      collector.add(kModelTensors.data() + item.key(), item.value().detach());
  }
  if (optimizer != nullptr && (has_alike || core_of(*optimizer).shard_group() != nullptr))
    add_state(collector, *optimizer);
  if (has_alike) {
    if (optimizer != nullptr) add_steps(collector, boxes, *optimizer);
    add_average(collector, boxes, parts);
  }
  boxes.on_device.wait(Deadline::after(kCopyTimeout), "a checkpoint");
  return boxes;
}

void require_same_groups(const at::Tensor& steps, const torch::nn::Module& module,
                         const optim::Optimizer* optimizer) {
  if (optimizer == nullptr) return;
  RunBoxes none;
  const Collector collector(none, module);
  std::string differences;
  for (std::size_t i = 0; i < optimizer->parameters().size(); ++i) {
    const auto saved = steps[static_cast<std::int64_t>(i)][1].item<std::int64_t>();
    if (saved == static_cast<std::int64_t>(optimizer->group_of(i))) continue;
    differences += fmt::format("\n  {}: in group {} here, in group {} in the checkpoint",
                               collector.identity(optimizer->parameters()[i], i).name,
                               optimizer->group_of(i), saved);
  }
  check(differences.empty(), "the checkpoint has other parameter groups:{}",
        first_lines(differences));
}

void adopt(const RunBoxes& boxes, optim::Optimizer* optimizer, const RunParts& parts) {
  boxes.on_device.copy_back();
  if (optimizer != nullptr) {
    const at::Tensor steps = boxes.steps.select(1, 0).contiguous();
    const std::int64_t* const counts = steps.data_ptr<std::int64_t>();
    core_of(*optimizer).adopt_state({counts, counts + steps.numel()});
  }
  if (parts.average != nullptr) parts.average->set_state(boxes.average);
}

bool is_steps(const std::string& name) { return name.starts_with(kOptimizerSteps); }

HeldMemory box_of(const std::string& name, const at::Tensor& tensor) {
  const Box box = whole_box(tensor.sizes().vec());
  return {{name, to_dtype(tensor.scalar_type()), tensor.sizes().vec(), box},
          {static_cast<std::byte*>(tensor.data_ptr()), tensor.strides().vec()}};
}

}  // namespace paceline::train
