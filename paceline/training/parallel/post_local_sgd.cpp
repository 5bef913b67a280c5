#include "paceline/training/parallel/post_local_sgd.h"

#include <utility>

#include <ATen/ATen.h>

#include "paceline/engine/core/check.h"
#include "paceline/training/tensor/collectives.h"

namespace paceline {
namespace {

constexpr const char* kSteps = "num_steps";
constexpr const char* kAverager = "periodic averager";

}  // namespace

std::shared_ptr<ProcessGroup> host_group(ProcessGroup& group) {
  return group.split(group.hosts().host_of[static_cast<std::size_t>(group.rank())], group.rank());
}

PostLocalSgdHook::PostLocalSgdHook(std::shared_ptr<ProcessGroup> subgroup, std::int64_t start_step)
    : subgroup_(std::move(subgroup)), start_step_(start_step) {}

std::string PostLocalSgdHook::name() const {
  return fmt::format("post_local_sgd (start_step {})", start_step_);
}

WorkPtr PostLocalSgdHook::start_round(ProcessGroup& group, const GradientBucket& bucket,
                                      int round) {
  if (round == 0) {
    const bool is_local = num_steps_ >= start_step_;
    return all_reduce_async(is_local ? *subgroup_ : group, bucket.flat, ReduceOp::kMean);
  }
  if (bucket.is_last) ++num_steps_;
  return nullptr;
}

optim::Words PostLocalSgdHook::progress() const { return {{kSteps, optim::to_word(num_steps_)}}; }

void PostLocalSgdHook::set_progress(const optim::Words& words) {
  num_steps_ = optim::count_in(words, kSteps, "post_local_sgd");
}

PeriodicAverager::PeriodicAverager(std::shared_ptr<ProcessGroup> group,
                                   std::vector<at::Tensor> parameters,
                                   const PeriodicAveragerOptions& options)
    : group_(std::move(group)), parameters_(std::move(parameters)), options_(options) {
  check(options.period >= 1 && options.warmup_steps >= 0,
        "PeriodicAverager: period {} must be at least 1, warmup_steps {} at least 0",
        options.period, options.warmup_steps);
}

void PeriodicAverager::average() {
  const std::int64_t step = num_steps_++;
  averaged_ =
      step >= options_.warmup_steps && (step - options_.warmup_steps) % options_.period == 0;
  if (!averaged_) return;
  const at::NoGradGuard no_grad;
  for (const at::Tensor& parameter : parameters_)
    all_reduce(*group_, parameter.detach(), ReduceOp::kMean);
}

optim::Words PeriodicAverager::options() const {
  return {{"period", optim::to_word(options_.period)},
          {"warmup_steps", optim::to_word(options_.warmup_steps)}};
}

optim::Words PeriodicAverager::state() const {
  optim::Words words = options();
  words[kSteps] = optim::to_word(num_steps_);
  return words;
}

void PeriodicAverager::require_own(const optim::Words& state) const {
  optim::require_same_words(state, options(), kAverager);
}

void PeriodicAverager::set_state(const optim::Words& state) {
  require_own(state);
  num_steps_ = optim::count_in(state, kSteps, kAverager);
}

}  // namespace paceline
