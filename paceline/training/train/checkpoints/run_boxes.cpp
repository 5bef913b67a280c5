#include "paceline/training/train/checkpoints/run_boxes.h"

#include <algorithm>
#include <functional>
#include <optional>
#include <unordered_map>
#include <utility>

#include <fmt/format.h>

#include <ATen/ATen.h>

#include "paceline/engine/core/check.h"
#include "paceline/training/models/layers.h"
#include "paceline/training/tensor/tensor_marks.h"
#include "paceline/training/tensor/tensor_view.h"

namespace paceline::train {

namespace {

using models::Division;

constexpr const char* kSteps = "optimizer.steps.";

// A parameter's name in a checkpoint, and its part of the whole parameter.
struct Identity {
  std::string name;
  std::optional<Division> division;
};

// Returns the parts of a box in the coordinates of the whole tensor, along the dimension that is
// divided, each with its beginning in the box.
std::vector<std::pair<Box, std::int64_t>> in_whole(const Box& box,
                                                   const std::optional<Division>& division) {
  if (!division) return {{box, 0}};
  std::vector<std::pair<Box, std::int64_t>> parts;
  const auto dim = static_cast<std::size_t>(division->dim);
  const std::int64_t begin = box.offsets[dim], end = begin + box.sizes[dim];
  std::int64_t here = 0, there = 0;  // where the section begins in the part and in the whole
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

  void add_whole(const std::string& name, const at::Tensor& tensor,
                 const std::optional<Division>& division = {}) {
    const Box box = whole_box(tensor.sizes().vec());
    add(name, tensor, tensor.sizes(), division, {box},
        {static_cast<std::byte*>(tensor.data_ptr()), tensor.strides().vec()}, box);
  }
  // Elements [first, first + count) of a dense tensor in the order of its memory; `data`: the
  // address of the first of them.
  void add_run(const std::string& name, const at::Tensor& memory, std::byte* data,
               const at::Tensor& like, std::int64_t first, std::int64_t count,
               const std::optional<Division>& division) {
    const auto shape = like.sizes().vec();
    const auto boxes =
        count == 0 ? std::vector<Box>() : boxes_of_run(shape, like.strides(), first, count);
    const auto element = static_cast<std::int64_t>(memory.element_size());
    add(name, memory, shape, division, boxes, {data - first * element, like.strides().vec()},
        whole_box(shape));
  }

 private:
  // `boxes` are parts of `all`, whose place in memory is `place`.
  void add(const std::string& name, const at::Tensor& memory, at::IntArrayRef sizes,
           const std::optional<Division>& division, const std::vector<Box>& boxes,
           const BoxPlace& place, const Box& all) {
    if (!memory.device().is_cpu()) {
      fail(ErrorCode::kUnsupported,
           "checkpoint: \"{}\" is on {}; only tensors on the CPU are saved", name,
           memory.device().str());
    }
    run_.tensors.push_back(memory);
    HeldBox held{name,
                 to_dtype(memory.scalar_type()),
                 division ? division->whole_sizes(sizes) : sizes.vec(),
                 {}};
    if (boxes.empty() || num_elements(all) == 0) {
      if (held.shape.empty()) return;  // a scalar that another rank holds
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

  RunBoxes& run_;
  std::unordered_map<const void*, Identity> identities_;
};

// Splits "exp_avg.3" into the name and the number of the parameter.
std::pair<std::string, std::size_t> split_name(const std::string& name) {
  const auto dot = name.rfind('.');
  return {name.substr(0, dot), std::stoul(name.substr(dot + 1))};
}

// Adds the state of the optimizer that this rank keeps.
void add_state(Collector& collector, const optim::Optimizer& optimizer) {
  for (const optim::StatePart& part : optimizer.state_parts()) {
    const auto [kind, number] = split_name(part.name);
    const Identity identity = collector.identity(optimizer.parameters()[number], number);
    collector.add_run(fmt::format("optimizer.{}.{}", kind, identity.name), part.elements,
                      static_cast<std::byte*>(part.elements.data_ptr()), part.like, part.first,
                      part.elements.numel(), identity.division);
  }
}

void add_steps(Collector& collector, RunBoxes& run, const optim::Optimizer& optimizer) {
  const auto count = static_cast<std::int64_t>(optimizer.parameters().size());
  run.steps = at::empty({count, 2}, at::kLong);
  run.steps.select(1, 0).copy_(optimizer.num_steps().second);
  for (std::int64_t i = 0; i < count; ++i) {
    const auto number = static_cast<std::size_t>(i);
    run.steps[i][1] = static_cast<std::int64_t>(optimizer.group_of(number));
    collector.add_whole(kSteps + collector.identity(optimizer.parameters()[number], number).name,
                        run.steps[i]);
  }
}

void add_average(Collector& collector, RunBoxes& run, const RunParts& parts) {
  if (parts.average == nullptr) return;
  run.average = parts.average->state();
  for (std::size_t i = 0; i + 1 < run.average.size(); ++i) {
    const Identity identity = collector.identity(parts.average->parameters()[i], i);
    collector.add_whole("average.weight." + identity.name, run.average[i].second,
                        identity.division);
  }
  collector.add_whole("average." + run.average.back().first, run.average.back().second);
}

void add_buffers(Collector& collector, const torch::nn::Module& module) {
  for (const auto& item : module.named_buffers())
    collector.add_whole("model." + item.key(), item.value().detach());
}

// The runs of elements that this rank has to save or to load.
using Runs = std::vector<std::pair<std::int64_t, std::int64_t>>;
using RunsOf = std::function<Runs(std::size_t number)>;

void add_parameters(Collector& collector, const torch::nn::Module& module,
                    const optim::Optimizer& optimizer, const RunsOf& runs_of) {
  const auto numbers = numbers_by_tensor(optimizer.parameters());
  models::visit_parameters(
      module, [&](const std::string& parameter_name, at::Tensor& parameter, const auto& division) {
        const std::string name = "model." + parameter_name;
        const at::Tensor memory = parameter.detach();
        const auto number = numbers.find(parameter.unsafeGetTensorImpl());
        if (number == numbers.end() || !optimizer.has_one_copy())
          return collector.add_whole(name, memory, division);
        const Runs runs = runs_of(number->second);
        std::byte* const data = optimizer.parameter_to_write(number->second);
        const auto element = static_cast<std::int64_t>(memory.element_size());
        for (const auto& [first, last] : runs) {
          collector.add_run(name, memory, data + first * element, memory, first, last - first,
                            division);
        }
        if (runs.empty()) collector.add_run(name, memory, data, memory, 0, 0, division);
      });
}

}  // namespace

RunBoxes boxes_to_save(const torch::nn::Module& module, const optim::Optimizer& optimizer,
                       const RunParts& parts, bool is_first_replica, bool has_replicas) {
  const at::NoGradGuard no_grad;
  RunBoxes run;
  Collector collector(run, module);
  if (has_replicas) {
    add_parameters(collector, module, optimizer,
                   [&](std::size_t number) { return optimizer.elements_to_save(number); });
  }
  if (is_first_replica) add_buffers(collector, module);
  if (has_replicas || optimizer.shard_group() != nullptr) add_state(collector, optimizer);
  if (!has_replicas) return run;
  add_steps(collector, run, optimizer);
  add_average(collector, run, parts);
  return run;
}

RunBoxes boxes_to_load(const torch::nn::Module& module, const optim::Optimizer& optimizer,
                       const RunParts& parts) {
  const at::NoGradGuard no_grad;
  RunBoxes run;
  Collector collector(run, module);
  add_parameters(collector, module, optimizer,
                 [&](std::size_t number) { return optimizer.elements_to_load(number); });
  add_buffers(collector, module);
  add_state(collector, optimizer);
  add_steps(collector, run, optimizer);
  add_average(collector, run, parts);
  return run;
}

void require_same_groups(const at::Tensor& steps, const torch::nn::Module& module,
                         const optim::Optimizer& optimizer) {
  RunBoxes none;
  const Collector collector(none, module);
  std::string differences;
  for (std::size_t i = 0; i < optimizer.parameters().size(); ++i) {
    const auto saved = steps[static_cast<std::int64_t>(i)][1].item<std::int64_t>();
    if (saved == static_cast<std::int64_t>(optimizer.group_of(i))) continue;
    differences += fmt::format("\n  {}: in group {} here, in group {} in the checkpoint",
                               collector.identity(optimizer.parameters()[i], i).name,
                               optimizer.group_of(i), saved);
  }
  check(differences.empty(), "the checkpoint has other parameter groups:{}", differences);
}

void adopt(const RunBoxes& boxes, optim::Optimizer& optimizer, const RunParts& parts) {
  const at::Tensor steps = boxes.steps.select(1, 0).contiguous();
  const std::int64_t* const counts = steps.data_ptr<std::int64_t>();
  optimizer.adopt_state({counts, counts + steps.numel()});
  if (parts.average != nullptr) parts.average->set_state(boxes.average);
}

bool is_steps(const std::string& name) { return name.starts_with(kSteps); }

HeldMemory box_of(const std::string& name, const at::Tensor& tensor) {
  const Box box = whole_box(tensor.sizes().vec());
  return {{name, to_dtype(tensor.scalar_type()), tensor.sizes().vec(), box},
          {static_cast<std::byte*>(tensor.data_ptr()), tensor.strides().vec()}};
}

}  // namespace paceline::train
