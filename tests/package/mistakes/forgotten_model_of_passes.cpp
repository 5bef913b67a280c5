// wanted: the model is missing: write backward_passes(loss, model)
#include <paceline/paceline.h>

#include <torch/torch.h>

int main() {
  torch::nn::Linear net(2, 1);
  const auto loss = [&](const paceline::data::Batch& batch) {
    return torch::mse_loss(net(batch.data), batch.target);
  };
  const auto gradients = paceline::train::backward_passes(loss);
}
