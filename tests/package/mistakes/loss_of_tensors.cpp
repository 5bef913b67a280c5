// wanted: the loss is a function of a batch: write [&](const data::Batch& batch)
#include <paceline/paceline.h>

#include <torch/torch.h>

int main() {
  const auto net = std::make_shared<torch::nn::LinearImpl>(2, 1);
  paceline::DistributedDataParallel model(net, paceline::init_process_group());
  const auto loss = [&](const at::Tensor& x, const at::Tensor& y) {
    return torch::mse_loss(model(x), y);
  };
  const auto gradients = paceline::train::backward_passes(loss, model);
}
