// What a Reducer does where an optimizer divides gradients among the ranks.

#include <algorithm>
#include <unordered_map>
#include <utility>

#include <ATen/ATen.h>

#include "paceline/engine/core/check.h"
#include "paceline/training/parallel/lockstep.h"
#include "paceline/training/parallel/reducer.h"
#include "paceline/training/tensor/collectives.h"

namespace paceline {
namespace {

// Buckets that have memory at a time: one that fills, and those that are being reduced.
constexpr std::size_t kSlots = 4;

using Numbers = std::unordered_map<const void*, std::size_t>;

Numbers numbers_of(const std::vector<at::Tensor>& tensors) {
  Numbers numbers;
  for (std::size_t i = 0; i < tensors.size(); ++i)
    numbers.emplace(tensors[i].unsafeGetTensorImpl(), i);
  return numbers;
}

// A dense tensor as one row, in the order of its memory.
at::Tensor as_row(const at::Tensor& dense) { return dense.as_strided({dense.numel()}, {1}); }

std::int64_t bytes_of(const FlatLayout& layout) {
  return layout.count() * static_cast<std::int64_t>(c10::elementSize(layout.type()));
}

std::vector<std::int64_t> rows_of_parts(const FlatLayout& layout, std::int64_t count, int parts) {
  std::vector<std::int64_t> rows;
  for (int part = 0; part < parts; ++part) {
    const std::int64_t begin = std::min(count, part * layout.part_count());
    rows.push_back(std::min(count - begin, layout.part_count()));
  }
  return rows;
}

}  // namespace

// Of units of which a parameter requires a gradient.
std::vector<BucketPlan> Reducer::plan_units() {
  std::vector<at::Tensor> tensors;
  for (const auto& parameter : parameters_) tensors.push_back(parameter.named.tensor);
  const Numbers numbers = numbers_of(tensors);
  const auto& of_optimizer = options_.optimizer->parameters();
  const Numbers known = numbers_of(of_optimizer);
  std::vector<BucketPlan> plans;
  units_.clear();
  for (auto& unit : options_.optimizer->gradient_units()) {
    BucketPlan plan{unit.layout, {}, false};
    bool is_trained = false;
    for (const std::size_t i : unit.parameters) {
      const auto found = numbers.find(of_optimizer[i].unsafeGetTensorImpl());
      check(found != numbers.end(),
            "{}: parameter {} of the optimizer, which divides gradients among the ranks, is "
            "not one of the module's",
            group_->self(), i);
      plan.parameters.push_back(found->second);
      is_trained |= parameters_[found->second].is_trained;
    }
    if (!is_trained) continue;
    const bool widens = steps_.has_shards() && c10::elementSize(plan.layout.type()) == 2;
    plan.is_alone = plan.parameters.size() == 1 && large_need_no_copy_ && !widens &&
                    tensors[plan.parameters.front()].nbytes() >= kLargeGradientBytes;
    plans.push_back(std::move(plan));
    units_.push_back(std::move(unit));
  }
  for (const auto& parameter : parameters_) {
    check(!parameter.is_trained || known.contains(parameter.named.tensor.unsafeGetTensorImpl()),
          "{}: parameter {} requires a gradient and is not one of the optimizer's, which "
          "divides gradients among the ranks",
          group_->self(), parameter.named.name);
  }
  return plans;
}

// The memory that the gradients of buckets pass through.
void Reducer::make_slots() {
  const std::size_t count = steps_.has_shards() ? units_.size() : std::min(units_.size(), kSlots);
  std::vector<std::int64_t> bytes(count);
  for (std::size_t i = 0; i < units_.size(); ++i) {
    const BucketPlan& plan = buckets_[i].plan;
    if (!plan.is_alone) bytes[i % count] = std::max(bytes[i % count], bytes_of(plan.layout));
  }
  slots_.clear();
  for (const std::int64_t size : bytes)
    slots_.push_back(size > 0 ? empty_symmetric(*group_, {size}, at::kByte) : at::Tensor());
  for (std::size_t i = 0; i < units_.size(); ++i) {
    auto& bucket = buckets_[i];
    const FlatLayout& layout = bucket.plan.layout;
    if (bucket.plan.is_alone) continue;
    bucket.flat = slots_[i % count].narrow(0, 0, bytes_of(layout)).view(layout.type());
    for (std::size_t n = 0; n < bucket.plan.parameters.size(); ++n) {
      auto& parameter = parameters_[bucket.plan.parameters[n]];
      parameter.place = layout.place(bucket.flat, n, parameter.named.tensor);
    }
  }
}

// Whether gradients may be stored for this unit. Those that came before it had room are then.
bool Reducer::make_room(std::size_t index) {
  auto& bucket = buckets_[index];
  if (bucket.has_room) return true;
  if (index >= next_bucket_ + slots_.size()) return false;
  if (index >= slots_.size()) finish(index - slots_.size());
  bucket.has_room = true;
  for (const std::size_t i : bucket.plan.parameters) {
    auto& parameter = parameters_[i];
    if (!parameter.is_trained && parameter.place.defined()) parameter.place.zero_();
    if (parameter.is_ready) store_gradient(parameter, {});
  }
  return true;
}

at::Tensor Reducer::part_of(std::size_t index) {
  return options_.optimizer->gradient_part(units_[index].number);
}

void Reducer::launch_parts(std::size_t index) {
  auto& bucket = buckets_[index];
  make_room(index);
  const FlatLayout& layout = bucket.plan.layout;
  TensorCall call{.op = Op::kReduceScatter, .reduce_op = ReduceOp::kMean};
  call.input = leaving(bucket);
  if (steps_.has_shards()) bucket.shards.finish(call.input);
  if (steps_.divisor() != group_->world_size())
    call.divisor = static_cast<std::uint32_t>(steps_.divisor());
  std::int64_t own_count = layout.part_count();
  if (bucket.plan.is_alone) {
    call.op = Op::kReduceScatterV;
    call.input = as_row(call.input.detach());
    call.counts = rows_of_parts(layout, call.input.numel(), group_->world_size());
    own_count = call.counts[static_cast<std::size_t>(group_->rank())];
  }
  bucket.adds = std::ranges::any_of(units_[index].parameters, [this](std::size_t i) {
    return options_.optimizer->has_gradient(i);
  });
  if (bucket.adds || call.input.scalar_type() != at::kFloat)
    bucket.received = at::empty({own_count}, call.input.options());
  call.output =
      bucket.received.defined() ? bucket.received : part_of(index).narrow(0, 0, own_count);
  in_lockstep([&] { bucket.work = start(*group_, call); });
  for (const std::size_t i : bucket.plan.parameters) {
    auto& parameter = parameters_[i];
    parameter.stand_in = at::Tensor();
    if (parameter.is_trained) parameter.named.tensor.mutable_grad() = at::Tensor();
  }
}

void Reducer::finish_parts(std::size_t index) {
  auto& bucket = buckets_[index];
  const at::Tensor received = std::exchange(bucket.received, {});
  if (!received.defined()) return;
  const at::Tensor own = part_of(index).narrow(0, 0, received.numel());
  bucket.adds ? own.add_(received) : own.copy_(received);
}

// Bucket by bucket, as there is room.
void Reducer::complete_parts() {
  for (std::size_t i = next_bucket_; i < units_.size(); ++i) {
    auto& bucket = buckets_[i];
    make_room(i);
    for (const std::size_t n : bucket.plan.parameters) {
      auto& parameter = parameters_[n];
      if (parameter.is_trained && !parameter.is_ready) stand_in_for(parameter);
    }
    bucket.missing = 0;
    if (!steps_.has_shards()) launch_complete_buckets();
  }
}

// Which parameters have a gradient now, on some rank or other.
void Reducer::tell_optimizer() {
  for (std::size_t i = 0; i < units_.size(); ++i) {
    for (std::size_t n = 0; n < units_[i].parameters.size(); ++n) {
      if (monitor_.is_used(buckets_[i].plan.parameters[n]))
        options_.optimizer->set_has_gradient(units_[i].parameters[n]);
    }
  }
}

}  // namespace paceline
