#pragma once

// The network and the optimizer that the flags choose.

#include <memory>
#include <vector>

#include <torch/nn/module.h>

#include "paceline/data/image_dataset.h"
#include "paceline/models/cnn.h"
#include "paceline/models/mnist_net.h"
#include "paceline/optim/optimizer.h"

#include "examples/train_cnn/options.h"

namespace train_cnn {

// Maps images to logits.
struct Model : torch::nn::Module {
  Model(const Options& options, const paceline::data::ImageDataset& images);
  at::Tensor forward(const at::Tensor& images);

  paceline::models::Cnn cnn{nullptr};  // one of the two
  paceline::models::MnistNet net{nullptr};
};

std::unique_ptr<paceline::optim::Optimizer> make_optimizer(const Options& options,
                                                           std::vector<at::Tensor> parameters);

}  // namespace train_cnn
