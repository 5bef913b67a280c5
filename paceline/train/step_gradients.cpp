#include "paceline/train/step_gradients.h"

#include <utility>

#include <ATen/ATen.h>

namespace paceline::train {

BackwardPasses::BackwardPasses(LossFunction loss, GradientSync& gradients)
    : loss_(std::move(loss)), gradients_(gradients), reducer_(nullptr) {}

BackwardPasses::BackwardPasses(LossFunction loss, Reducer& gradients)
    : loss_(std::move(loss)), gradients_(gradients), reducer_(&gradients) {}

double BackwardPasses::add(const data::Batch& batch, const ScaleLoss& scale, PhaseTimes& times) {
  const auto begin_forward = PhaseTimes::Clock::now();
  const at::Tensor loss = loss_(batch);
  times.add_with_waiting(Phase::kForward, begin_forward, gradients_.take_exposed_seconds());
  gradients_.set_synchronize(batch.ends_step);
  const at::Tensor weighted = batch.weight == 1 ? loss : loss * batch.weight;
  const auto begin = PhaseTimes::Clock::now();
  (scale ? scale(weighted) : weighted).backward();
  times.add_with_waiting(Phase::kBackward, begin, gradients_.take_exposed_seconds());
  return loss.item<double>();
}

std::shared_ptr<StepGradients> backward_passes(LossFunction loss, Reducer& gradients) {
  return std::make_shared<BackwardPasses>(std::move(loss), gradients);
}

}  // namespace paceline::train
