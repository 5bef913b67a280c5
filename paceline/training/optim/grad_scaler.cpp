#include "paceline/training/optim/grad_scaler.h"

#include <algorithm>
#include <atomic>
#include <cmath>

#include <ATen/ATen.h>

#include "paceline/engine/core/check.h"
#include "paceline/engine/optim_kernels/kernels.h"
#include "paceline/training/optim/metadata_words.h"
#include "paceline/training/optim/optimizer_core.h"
#include "paceline/training/optim/rules/tensor_blocks.h"
#include "paceline/training/tensor/tensor_marks.h"

namespace paceline::optim {
namespace {

constexpr const char* kOwner = "grad_scaler";

Metadata words_of(const GradScalerOptions& options) {
  return {{"growth_factor", to_word(options.growth_factor)},
          {"backoff_factor", to_word(options.backoff_factor)},
          {"growth_interval", to_word(options.growth_interval)}};
}

}  // namespace

GradScaler::GradScaler(const GradScalerOptions& options, std::shared_ptr<ProcessGroup> group)
    : options_(options), group_(std::move(group)) {
  const auto scale = static_cast<float>(options.init_scale);
  check(scale > 0 && std::isfinite(scale),
        "grad_scaler: init_scale {} must be a finite float32 above 0", options.init_scale);
  check(options.growth_factor > 1, "grad_scaler: growth_factor {} must be above 1",
        options.growth_factor);
  check(options.backoff_factor > 0 && options.backoff_factor < 1,
        "grad_scaler: backoff_factor {} must be in (0, 1)", options.backoff_factor);
  check(options.growth_interval > 0, "grad_scaler: growth_interval {} must be above 0",
        options.growth_interval);
  keep({.scale = scale});
}

const GradScaler::Kept& GradScaler::kept() const {
  if (kept_ == copy_) return kept_;
  throw DamagedState(fmt::format(
      "the loss scaler changed in memory after its last update(): scale {} after {} good steps, in "
      "its copy {} after {}; memory is failing or was overwritten: continue from a checkpoint",
      kept_.scale, kept_.growth_tracker, copy_.scale, copy_.growth_tracker));
}

at::Tensor GradScaler::scale(const at::Tensor& loss) const { return loss * kept().scale; }

// Divides the gradients by the scale. Returns whether all of them were finite.
bool GradScaler::divide(const Optimizer& optimizer) const {
  for (const at::Tensor& parameter : optimizer.parameters()) {
    at::Tensor& gradient = own_gradient(parameter);
    if (gradient.defined() && gradient.scalar_type() == at::kHalf)
      gradient = gradient.to(at::kFloat);
  }
  const auto factor = static_cast<float>(1.0 / static_cast<double>(kept().scale));
  std::atomic<bool> finite{true};
  for (const at::Tensor& gradient : core_of(optimizer).gradient_memory()) {
    for_blocks(gradient, true, [&](std::int64_t, float* elements, std::int64_t count) {
      if (!all_finite(elements, count)) finite.store(false, std::memory_order_relaxed);
      ::paceline::optim::scale(elements, count, factor);
    });
  }
  return finite.load();
}

void GradScaler::unscale(Optimizer& optimizer) {
  check(!seen_.contains(&optimizer),
        "grad_scaler: these gradients have been unscaled since the last update()");
  core_of(optimizer).require_model_parts("grad_scaler");
  const at::NoGradGuard no_grad;
  std::int32_t nonfinite = divide(optimizer) ? 0 : 1;
  ProcessGroup* const group =
      core_of(optimizer).shards_gradients() ? core_of(optimizer).shard_group() : group_.get();
  for (ProcessGroup* const ranks : {group, core_of(optimizer).model_group()}) {
    if (ranks != nullptr) ranks->all_reduce(std::span(&nonfinite, 1), ReduceOp::kMax);
  }
  seen_[&optimizer].found_nonfinite = nonfinite != 0;
}

bool GradScaler::step(Optimizer& optimizer) {
  if (!seen_.contains(&optimizer)) unscale(optimizer);
  Seen& seen = seen_[&optimizer];
  check(!seen.stepped, "grad_scaler: step() has been called since the last update()");
  seen.stepped = true;
  if (!seen.found_nonfinite) optimizer.step();
  return !seen.found_nonfinite;
}

void GradScaler::update() {
  check(!seen_.empty(), "grad_scaler: call step() or unscale() before update()");
  const bool any =
      std::ranges::any_of(seen_, [](const auto& s) { return s.second.found_nonfinite; });
  seen_.clear();
  Kept next = kept();
  if (any) {
    next.scale = static_cast<float>(next.scale * options_.backoff_factor);
    next.growth_tracker = 0;
  } else if (++next.growth_tracker == options_.growth_interval) {
    const auto larger = static_cast<float>(next.scale * options_.growth_factor);
    if (std::isfinite(larger)) next.scale = larger;
    next.growth_tracker = 0;
  }
  keep(next);
}

Metadata GradScaler::state() const {
  Metadata words = words_of(options_);
  words["scale"] = to_word(static_cast<double>(kept().scale));
  words["growth_tracker"] = to_word(kept().growth_tracker);
  return words;
}

void GradScaler::require_compatible(const Metadata& state) const {
  require_same_words(state, words_of(options_), kOwner);
}

void GradScaler::set_state(const Metadata& state) {
  require_compatible(state);
  const double saved = number_in(state, "scale", kOwner);
  const std::int64_t tracker = count_in(state, "growth_tracker", kOwner);
  check(saved > 0 && std::isfinite(saved),
        "grad_scaler: the saved scale {} is not a finite number above 0", saved);
  keep({.scale = static_cast<float>(saved), .growth_tracker = tracker});
  seen_.clear();
}

}  // namespace paceline::optim
