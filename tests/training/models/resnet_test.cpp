#include "paceline/training/models/resnet.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <torch/torch.h>

#include "paceline/engine/core/error.h"
#include "paceline/training/models/cnn.h"
#include "paceline/training/models/residual_block.h"

#include "tests/harness/says.h"

namespace paceline::models {
namespace {

using harness::Says;

std::int64_t num_elements(const std::vector<at::Tensor>& tensors) {
  std::int64_t count = 0;
  for (const auto& tensor : tensors) count += tensor.numel();
  return count;
}

std::vector<std::string> names_of(const torch::nn::Module& module) {
  std::vector<std::string> names;
  for (const auto& item : module.named_parameters()) names.push_back(item.key());
  return names;
}

// The numbers of parameters of torchvision's models with 1,000 classes.
TEST(ResNet, has_as_many_parameters_as_torchvisions) {
  for (const auto& [depth, count] : std::vector<std::pair<int, std::int64_t>>{
           {18, 11'689'512}, {34, 21'797'672}, {50, 25'557'032}, {101, 44'549'160}}) {
    EXPECT_EQ(num_elements(ResNet(ResNetOptions{.depth = depth})->parameters()), count) << depth;
  }
}

TEST(ResNet, parameters_and_buffers_have_torchvisions_names_and_order) {
  const auto names = names_of(*ResNet(ResNetOptions{.depth = 18}));
  ASSERT_EQ(names.size(), 62U);
  const std::vector<std::string> first = {
      "conv1.weight",          "bn1.weight",          "bn1.bias",
      "layer1.0.conv1.weight", "layer1.0.bn1.weight", "layer1.0.bn1.bias",
      "layer1.0.conv2.weight", "layer1.0.bn2.weight"};
  EXPECT_TRUE(std::equal(first.begin(), first.end(), names.begin()));
  const std::vector<std::string> second = {"layer2.0.bn2.bias", "layer2.0.downsample.0.weight",
                                           "layer2.0.downsample.1.weight",
                                           "layer2.0.downsample.1.bias", "layer2.1.conv1.weight"};
  EXPECT_NE(std::search(names.begin(), names.end(), second.begin(), second.end()), names.end());
  EXPECT_EQ(names.back(), "fc.bias");

  const ResNet deep(ResNetOptions{.depth = 50});
  EXPECT_EQ(deep->named_parameters()["layer1.0.conv3.weight"].sizes(),
            (std::vector<std::int64_t>{256, 64, 1, 1}));
  EXPECT_EQ(deep->named_parameters()["layer1.0.downsample.0.weight"].sizes(),
            (std::vector<std::int64_t>{256, 64, 1, 1}));
  EXPECT_TRUE(deep->named_buffers().contains("layer4.2.bn3.running_var"));
  EXPECT_EQ(deep->buffers().size(), 53U * 3);
}

TEST(ResNet, images_become_logits_at_both_sizes_of_stem) {
  const at::NoGradGuard no_grad;
  for (const int depth : {18, 50}) {
    ResNet large(ResNetOptions{.depth = depth, .classes = 7});
    EXPECT_EQ(large(at::zeros({2, 3, 64, 64})).sizes(), (std::vector<std::int64_t>{2, 7}));
    ResNet small(ResNetOptions{.depth = depth, .channels = 1, .classes = 10, .small_images = true});
    EXPECT_EQ(small(at::zeros({2, 1, 32, 32})).sizes(), (std::vector<std::int64_t>{2, 10}));
  }
}

// Computes the same block with functions only.
TEST(ResidualBlock, computes_what_its_layers_say) {
  torch::manual_seed(1);
  for (const bool is_bottleneck : {false, true}) {
    ResidualBlock block(ResidualBlockOptions{
        .in_channels = 8, .width = 6, .stride = 2, .is_bottleneck = is_bottleneck});
    const auto p = block->named_parameters();
    const auto norm = [&](const at::Tensor& x, const std::string& name) {
      return at::batch_norm(x, p[name + ".weight"], p[name + ".bias"], {}, {}, true, 0, 1e-5,
                            false);
    };
    const auto layer = [&](const at::Tensor& x, const std::string& number, int stride) {
      const auto& weight = p["conv" + number + ".weight"];
      return norm(at::conv2d(x, weight, {}, stride, weight.size(2) / 2), "bn" + number);
    };
    const auto input = at::randn({3, 8, 9, 9});
    at::Tensor x = layer(input, "1", is_bottleneck ? 1 : 2);
    x = layer(at::relu(x), "2", is_bottleneck ? 2 : 1);
    if (is_bottleneck) x = layer(at::relu(x), "3", 1);
    x = x + norm(at::conv2d(input, p["downsample.0.weight"], {}, 2), "downsample.1");
    EXPECT_TRUE(at::allclose(block(input), at::relu(x), 1e-4, 1e-5)) << is_bottleneck;
  }
}

TEST(ResNet, convolutions_begin_as_torchvisions) {
  torch::manual_seed(3);
  const ResNet model(ResNetOptions{.depth = 18});
  const auto weight = model->named_parameters()["layer3.0.conv2.weight"];
  const double expected = std::sqrt(2.0 / (256 * 9));  // He's initialization: fan_out, ReLU
  EXPECT_NEAR(weight.std().item<double>(), expected, 0.01 * expected);
  EXPECT_TRUE(at::equal(model->named_parameters()["layer3.0.bn2.weight"], at::ones({256})));

  const ResNet zeroed(ResNetOptions{.depth = 18, .zero_init_residual = true});
  EXPECT_TRUE(at::equal(zeroed->named_parameters()["layer3.0.bn2.weight"], at::zeros({256})));
  EXPECT_TRUE(at::equal(zeroed->named_parameters()["layer3.0.bn1.weight"], at::ones({256})));
}

TEST(ResNet, another_depth_is_an_error_that_lists_the_known_ones) {
  try {
    ResNet model(ResNetOptions{.depth = 20});
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalid);
    EXPECT_THAT(error.what(), Says("resnet.depth_unknown", 20));
  }
}

TEST(Layers, every_norm_and_linear_layer_of_a_model_comes_from_them) {
  int num_norms = 0, num_linears = 0;
  const Layers layers{.linear =
                          [&](const torch::nn::LinearOptions& options) {
                            ++num_linears;
                            return Layers::plain_linear(options);
                          },
                      .norm =
                          [&](std::int64_t channels) {
                            ++num_norms;
                            return torch::nn::AnyModule(
                                torch::nn::GroupNorm(torch::nn::GroupNormOptions(2, channels)));
                          }};
  ResNet model(ResNetOptions{.depth = 18, .classes = 10, .small_images = true}, layers);
  EXPECT_EQ(num_norms, 20);
  EXPECT_EQ(num_linears, 1);
  EXPECT_TRUE(model->buffers().empty());  // GroupNorm has no buffers
  model(at::randn({2, 3, 16, 16})).sum().backward();
  for (const auto& parameter : model->parameters()) EXPECT_TRUE(parameter.grad().defined());

  num_linears = 0;
  const Cnn cnn(CnnOptions{.height = 16, .width = 16}, layers);
  const MnistNet net(layers);
  EXPECT_EQ(num_linears, 4);
}

template <class Holder>
void expect_an_equal_clone(Holder& model, const at::Tensor& images) {
  const auto clone = std::dynamic_pointer_cast<typename Holder::ContainedType>(model->clone());
  ASSERT_NE(clone, nullptr);
  EXPECT_EQ(names_of(*clone), names_of(*model));
  EXPECT_TRUE(at::equal(clone->forward(images), model->forward(images)));
  const at::NoGradGuard no_grad;
  for (auto& parameter : clone->parameters()) parameter.zero_();
  EXPECT_FALSE(at::equal(clone->forward(images), model->forward(images)));
}

TEST(Models, a_clone_computes_the_same_with_weights_of_its_own) {
  torch::manual_seed(1);
  ResNet resnet(ResNetOptions{.depth = 50, .classes = 10, .small_images = true});
  expect_an_equal_clone(resnet, at::randn({2, 3, 8, 8}));
  Cnn cnn(CnnOptions{.height = 8, .width = 8});
  expect_an_equal_clone(cnn, at::randn({2, 3, 8, 8}));
  MnistNet net;
  expect_an_equal_clone(net, at::randn({2, 1, 28, 28}));
}

}  // namespace
}  // namespace paceline::models
