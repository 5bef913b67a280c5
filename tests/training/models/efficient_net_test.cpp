#include "paceline/training/models/efficient_net.h"

#include <gtest/gtest.h>

#include <torch/torch.h>

#include "tests/harness/expect_error.h"

namespace paceline::models {
namespace {

std::int64_t num_elements(const torch::nn::Module& module) {
  std::int64_t count = 0;
  for (const auto& tensor : module.parameters()) count += tensor.numel();
  return count;
}

EfficientNet small(double stochastic_depth = 0) {
  torch::manual_seed(1);
  return EfficientNet(EfficientNetOptions{.classes = 10, .stochastic_depth = stochastic_depth});
}

// The numbers of parameters of torchvision's models with 1,000 classes.
TEST(EfficientNet, has_as_many_parameters_as_torchvisions) {
  const std::vector<std::int64_t> counts = {5'288'548,  7'794'184,  9'109'994,  12'233'232,
                                            19'341'616, 30'389'784, 43'040'704, 66'347'960};
  for (std::size_t variant = 0; variant < counts.size(); ++variant) {
    EXPECT_EQ(
        num_elements(*EfficientNet(EfficientNetOptions{.variant = static_cast<int>(variant)})),
        counts[variant])
        << "B" << variant;
  }
}

TEST(EfficientNet, parameters_have_torchvisions_names) {
  const auto parameters = small()->named_parameters();
  for (const char* name :
       {"features.0.0.weight", "features.0.1.bias", "features.1.0.block.0.0.weight",
        "features.1.0.block.1.fc1.bias", "features.1.0.block.2.1.weight",
        "features.2.1.block.3.0.weight", "features.7.0.block.2.fc2.weight", "features.8.0.weight",
        "classifier.1.weight", "classifier.1.bias"}) {
    EXPECT_TRUE(parameters.contains(name)) << name;
  }
  EXPECT_TRUE(small()->named_buffers().contains("features.0.1.running_mean"));
}

TEST(EfficientNet, larger_ones_have_other_norms) {
  for (const auto& [variant, epsilon] : std::vector<std::pair<int, double>>{{4, 1e-5}, {5, 1e-3}}) {
    const EfficientNet model(EfficientNetOptions{.variant = variant});
    for (const auto& module : model->modules()) {
      if (const auto* norm = module->as<torch::nn::BatchNorm2d>()) {
        EXPECT_EQ(norm->options.eps(), epsilon);
      }
    }
  }
}

TEST(EfficientNet, images_become_logits_and_every_parameter_gets_a_gradient) {
  EfficientNet model = small();
  for (const std::int64_t size : {32, 65}) {
    const at::Tensor logits = model->forward(torch::rand({2, 3, size, size}));
    EXPECT_EQ(logits.sizes(), torch::IntArrayRef({2, 10}));
    logits.sum().backward();
  }
  for (const auto& parameter : model->named_parameters())
    EXPECT_TRUE(parameter.value().grad().defined()) << parameter.key();
}

// Each training pass drops different blocks; an evaluation drops none.
TEST(EfficientNet, stochastic_depth_is_of_training) {
  int rows = 0;
  Layers layers;
  layers.dropout = [&](const at::Tensor& input, double p, bool is_training) {
    if (input.dim() == 4) {
      ++rows;
      EXPECT_EQ(input.sizes(), torch::IntArrayRef({2, 1, 1, 1}));
      EXPECT_LT(p, 0.5);
    }
    return Layers::plain_dropout(input, p, is_training);
  };
  EfficientNet model(EfficientNetOptions{.classes = 10, .stochastic_depth = 0.5}, layers);
  const at::Tensor images = torch::rand({2, 3, 32, 32});
  (void)model->forward(images);
  EXPECT_EQ(rows, 9);  // 9 of the 16 blocks add their input
  model->eval();
  EXPECT_TRUE(torch::equal(model->forward(images), model->forward(images)));
  EXPECT_EQ(rows, 9);
}

TEST(EfficientNet, a_clone_is_a_model_of_its_own) {
  EfficientNet model = small();
  model->eval();
  const auto copy = std::dynamic_pointer_cast<EfficientNetImpl>(model->clone());
  copy->eval();
  const at::Tensor images = torch::rand({1, 3, 32, 32});
  const at::Tensor before = model->forward(images);
  EXPECT_TRUE(torch::equal(copy->forward(images), before));
  {
    const at::NoGradGuard no_grad;
    for (auto& parameter : copy->parameters()) parameter.zero_();
  }
  EXPECT_TRUE(torch::equal(model->forward(images), before));
}

TEST(EfficientNet, another_variant_is_refused) {
  for (const int variant : {-1, 8}) {
    expect_error(ErrorCode::kInvalid, {"B" + std::to_string(variant), "0 to 7"},
                 [&] { EfficientNet model(EfficientNetOptions{.variant = variant}); });
  }
}

}  // namespace
}  // namespace paceline::models
