#include "paceline/training/parallel/reducer/gradient_buckets.h"

#include <algorithm>
#include <utility>

#include <ATen/ATen.h>

#include "paceline/training/device/streams.h"
#include "paceline/training/tensor/tensor_marks.h"

namespace paceline {

namespace {

// Whether `tensor` shares the memory of `other` and has only one reference.
bool is_sole_alias(const at::TensorBase& tensor, const at::Tensor& other) {
  return tensor.defined() && tensor.has_storage() && tensor.use_count() == 1 &&
         tensor.storage().unsafeGetStorageImpl() == other.storage().unsafeGetStorageImpl();
}

// Whether only `.grad` will refer to the gradient's memory once autograd has dropped `incoming`,
// the tensor that it passed to the accumulator. Autograd turns an incoming tensor into `.grad` if
// nothing else refers to it. But that tensor may be a view: of memory that autograd nodes read
// later, of a saved tensor, or of a tensor that the user passed to backward(). The storage counts
// its references; the known ones are `.grad`, `incoming`, and the tensor of which `incoming` is a
// view (a linear layer's weight gets a transposed product).
bool has_memory_alone(const at::Tensor& gradient, const at::Tensor& incoming) {
  std::size_t known = 1;
  if (is_sole_alias(incoming, gradient)) {
    ++known;
    if (incoming.is_view() && is_sole_alias(incoming._base(), gradient)) ++known;
  }
  return gradient.storage().use_count() == known;
}

// Keeps the memory of a tensor that another stream made from being reused before the work that is
// now queued on the current stream has ended.
void note_use(const at::Tensor& tensor) {
  if (!tensor.is_cpu()) tensor.record_stream(current_stream_of(tensor.device()));
}

}  // namespace

std::vector<BucketPlan> plan_buckets(const std::vector<at::Tensor>& parameters,
                                     const std::vector<std::size_t>& order,
                                     const BucketLimits& limits) {
  std::vector<BucketPlan> closed;
  std::vector<BucketPlan> open;  // at most one for each type
  for (const std::size_t i : order) {
    const auto& parameter = parameters[i];
    const auto type = parameter.scalar_type();
    if (parameter.nbytes() >= limits.alone_bytes) {
      closed.push_back({FlatLayout({parameter}, 1), {i}, true});
      continue;
    }
    const auto has_type = [type](const auto& bucket) { return bucket.layout.type() == type; };
    auto bucket = std::find_if(open.begin(), open.end(), has_type);
    if (bucket == open.end()) bucket = open.insert(open.end(), BucketPlan{FlatLayout(type), {}});
    bucket->parameters.push_back(i);
    bucket->layout.append(parameter.numel());
    const bool is_first = std::none_of(closed.begin(), closed.end(), [&](const auto& other) {
      return has_type(other) && !other.is_alone;
    });
    if (static_cast<std::size_t>(bucket->layout.count()) * parameter.element_size() >=
        (is_first ? limits.first_bytes : limits.cap_bytes)) {
      closed.push_back(std::move(*bucket));
      open.erase(bucket);
    }
  }
  for (auto& bucket : open) closed.push_back(std::move(bucket));
  return closed;
}

void Gradient::store(const at::Tensor& incoming) {
  const at::NoGradGuard no_grad;
  at::Tensor& gradient = own_gradient(parameter);
  if (!place.defined()) {
    // The sum is written while the pass continues, so no other code may use the memory. All ranks
    // must have their elements in the same order, that of the parameter.
    if (gradient.strides() != parameter.strides() || !has_memory_alone(gradient, incoming))
      gradient = at::empty_like(parameter.detach()).copy_(gradient);
  } else if (!gradient.is_alias_of(place)) {
    place.copy_(gradient);
    note_use(gradient);
    gradient = place;
  }
}

void Gradient::stand_in_for_missing() {
  const at::NoGradGuard no_grad;
  at::Tensor& gradient = own_gradient(parameter);
  at::Tensor& goes = place.defined() ? place : stand_in;
  if (gradient.defined() && place.defined() && gradient.is_alias_of(place)) {
    gradient = gradient.clone();
    return;
  }
  if (!goes.defined()) goes = at::empty_like(parameter.detach());
  gradient.defined() ? goes.copy_(gradient) : goes.zero_();
}

Buckets::Buckets(std::vector<NamedParameter> named) : parameters(std::move(named)) {
  for (const auto& parameter : parameters) gradients.emplace_back().parameter = parameter.tensor;
}

void Buckets::plan(std::vector<BucketPlan> plans) {
  all.clear();
  for (auto& plan : plans) {
    for (const std::size_t i : plan.parameters) gradients[i].bucket = all.size();
    all.emplace_back().plan = std::move(plan);
  }
}

void Buckets::forget_plan() {
  is_planned = false;
  all.clear();
  for (Gradient& gradient : gradients) gradient.place = at::Tensor();
}

void Buckets::lay_out(Bucket& bucket, const at::Tensor& flat) {
  bucket.flat = flat;
  for (std::size_t n = 0; n < bucket.plan.parameters.size(); ++n) {
    Gradient& gradient = gradients[bucket.plan.parameters[n]];
    gradient.place = bucket.plan.layout.place(flat, n, gradient.parameter);
  }
}

void Buckets::begin_pass() {
  next = 0;
  for (Gradient& gradient : gradients) gradient.is_ready = false;
  for (Bucket& bucket : all) {
    bucket.missing = static_cast<std::size_t>(std::ranges::count_if(
        bucket.plan.parameters, [this](std::size_t i) { return gradients[i].is_trained; }));
  }
}

at::Tensor Buckets::content(const Bucket& bucket) const {
  if (bucket.flat.defined()) return bucket.flat;
  const Gradient& gradient = gradients[bucket.plan.parameters.front()];
  return gradient.stand_in.defined() ? gradient.stand_in : own_gradient(gradient.parameter);
}

at::Tensor Buckets::tensor_to_send(const Bucket& bucket) const {
  if (!bucket.wide.defined()) return content(bucket);
  const at::NoGradGuard no_grad;
  return bucket.wide.copy_(bucket.flat);
}

void Buckets::drop_gradients() {
  for (Gradient& gradient : gradients) {
    if (gradient.is_trained) own_gradient(gradient.parameter) = at::Tensor();
  }
}

void ShardSum::add(const at::Tensor& gradients, bool may_keep) {
  const at::NoGradGuard no_grad;
  std::size_t level = 0;
  for (; (count_ >> level & 1) != 0; ++level)
    levels_[level].add_(level == 0 ? gradients : levels_[level - 1]);
  if (level == levels_.size()) levels_.emplace_back();
  if (level > 0) {
    std::swap(levels_[level], levels_[level - 1]);
  } else if (may_keep) {
    levels_[0] = gradients;
  } else if (levels_[0].defined()) {
    levels_[0].copy_(gradients);
  } else {
    levels_[0] = gradients.clone();
  }
  ++count_;
}

void ShardSum::finish(const at::Tensor& gradients) {
  const at::NoGradGuard no_grad;
  for (std::size_t level = 0; level < levels_.size(); ++level) {
    if ((count_ >> level & 1) != 0) gradients.add_(levels_[level]);
  }
  count_ = 0;
}

}  // namespace paceline
