#pragma once

// The network, the optimizer and the communication hook that the flags choose.

#include <memory>
#include <optional>
#include <vector>

#include <torch/nn/module.h>

#include "paceline/data/image_dataset.h"
#include "paceline/models/cnn.h"
#include "paceline/models/mnist_net.h"
#include "paceline/optim/optimizer.h"
#include "paceline/parallel/communication_hook.h"

#include "examples/train_cnn/options.h"

namespace train_cnn {

// Maps images to logits in float32, computed with the precision of the flags.
struct Model : torch::nn::Module {
  Model(const Options& options, const paceline::data::ImageDataset& images);
  at::Tensor forward(const at::Tensor& images);

  paceline::models::Cnn cnn{nullptr};  // one of the two
  paceline::models::MnistNet net{nullptr};
  at::ScalarType type = at::kFloat;        // of the parameters
  std::optional<at::ScalarType> autocast;  // of matrix products and convolutions
};

std::unique_ptr<paceline::optim::Optimizer> make_optimizer(const Options& options,
                                                           std::vector<at::Tensor> parameters);

// Null: gradients travel as they are.
std::shared_ptr<paceline::CommunicationHook> make_hook(const Options& options);

}  // namespace train_cnn
