#pragma once

// The network that the flags choose.

#include <memory>
#include <string>
#include <vector>

#include <torch/nn/module.h>
#include <torch/nn/modules/container/any.h>

#include "paceline/engine/collectives/group/process_group.h"
#include "paceline/training/train/training_step.h"

namespace train_image {

struct Images;
struct Options;

std::vector<std::string> model_names();
// The height and width to which images of a folder are resized by default.
std::int64_t usual_image_size(const std::string& model);

// Maps images to logits in float32, computed with the precision that the flags choose.
struct Model : torch::nn::Module {
  // Throws Error(kInvalid) if the network does not accept images of this size and these channels.
  Model(const Options& options, const Images& images,
        const std::shared_ptr<paceline::ProcessGroup>& group);
  at::Tensor forward(const at::Tensor& images);

  torch::nn::AnyModule network;  // its parameters have torchvision's names
  const paceline::train::Precision precision;
};

}  // namespace train_image
