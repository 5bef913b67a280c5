#include "paceline/training/train/step_gradients.h"

#include <string_view>
#include <utility>

#include <ATen/ATen.h>
#include <c10/util/Exception.h>

#include "paceline/engine/core/check.h"

namespace paceline::train {

BackwardPasses::BackwardPasses(LossFunction loss, Reducer& gradients)
    : loss_(std::move(loss)), gradients_(gradients) {}

BackwardPasses::BackwardPasses(CountedLoss loss, Reducer& gradients)
    : loss_(std::move(loss.sum)), count_(std::move(loss.count)), gradients_(gradients) {}

void BackwardPasses::weigh(std::span<data::Batch> step) {
  if (count_) weigh_by_count(step, count_, &gradients_.group(), gradients_.logical_shards());
}

at::Tensor BackwardPasses::loss_of(const data::Batch& batch) const {
  try {
    return loss_(batch);
  } catch (const c10::Error& error) {
    // LibTorch's words for a normalisation over one value (torch/nn/functional/batchnorm.h).
    constexpr std::string_view kOneValue = "Expected more than 1 value per channel";
    const std::string_view what = error.what_without_backtrace();
    if (batch.data.size(0) != 1 || what.find(kOneValue) == std::string_view::npos) throw;
    fail(ErrorCode::kInvalid,
         "{}: a batch of 1 sample was left at the end of the epoch, and batch normalisation "
         "needs more: leave out a last batch that is not full (DataLoaderOptions::drop_last, "
         "--drop-last), or choose another batch size: {}",
         gradients_.group().self(), what);
  }
}

void BackwardPasses::add(const data::Batch& batch, const ScaleLoss& scale, PhaseTimes& times) {
  const auto begin_forward = PhaseTimes::Clock::now();
  const at::Tensor loss = loss_of(batch);
  gradients_.note_loss(loss.item<double>() * batch.weight);
  times.add_with_waiting(Phase::kForward, begin_forward, gradients_.take_exposed_seconds());
  gradients_.set_synchronize(batch.ends_step);
  const at::Tensor weighted = batch.weight == 1 ? loss : loss * batch.weight;
  const auto begin = PhaseTimes::Clock::now();
  (scale ? scale(weighted) : weighted).backward();
  times.add_with_waiting(Phase::kBackward, begin, gradients_.take_exposed_seconds());
}

std::shared_ptr<StepGradients> backward_passes(LossFunction loss, Reducer& gradients) {
  return std::make_shared<BackwardPasses>(std::move(loss), gradients);
}

std::shared_ptr<StepGradients> backward_passes(CountedLoss loss, Reducer& gradients) {
  return std::make_shared<BackwardPasses>(std::move(loss), gradients);
}

}  // namespace paceline::train
