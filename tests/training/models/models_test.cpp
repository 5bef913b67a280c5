#include <gtest/gtest.h>

#include <torch/torch.h>

#include "paceline/engine/core/error.h"
#include "paceline/training/models/cnn.h"

namespace paceline::models {
namespace {

std::int64_t num_parameters(const torch::nn::Module& module) {
  std::int64_t count = 0;
  for (const auto& parameter : module.parameters()) count += parameter.numel();
  return count;
}

// Computes the same layers with functions only.
torch::Tensor by_hand(const torch::OrderedDict<std::string, torch::Tensor>& p, torch::Tensor x,
                      std::int64_t padding) {
  for (const std::string layer : {"conv1", "conv2"}) {
    x = torch::conv2d(x, p[layer + ".weight"], p[layer + ".bias"], 1, padding);
    x = torch::max_pool2d(torch::relu(x), 2);
  }
  x = torch::relu(torch::linear(x.flatten(1), p["linear1.weight"], p["linear1.bias"]));
  return torch::linear(x, p["linear2.weight"], p["linear2.bias"]);
}

TEST(Cnn, computes_what_its_layers_say_in_both_memory_formats) {
  torch::manual_seed(1);
  Cnn cnn;
  const auto x = torch::randn({5, 3, 32, 32});
  const auto expected = by_hand(cnn->named_parameters(), x, 1);
  EXPECT_TRUE(torch::allclose(cnn->forward(x), expected, 1e-5, 1e-6));
  const auto last = x.contiguous(torch::MemoryFormat::ChannelsLast);
  EXPECT_TRUE(torch::allclose(cnn->forward(last), expected, 1e-4, 1e-5));
}

TEST(MnistNet, computes_what_its_layers_say) {
  torch::manual_seed(1);
  MnistNet net;
  const auto x = torch::randn({5, 1, 28, 28});
  EXPECT_TRUE(torch::allclose(net->forward(x), by_hand(net->named_parameters(), x, 0), 1e-5, 1e-6));
}

TEST(Cnn, has_the_layers_it_says) {
  Cnn cnn;
  EXPECT_EQ(cnn->forward(torch::zeros({5, 3, 32, 32})).sizes(), (std::vector<std::int64_t>{5, 10}));
  EXPECT_EQ(num_parameters(*cnn),
            (3 * 9 * 32 + 32) + (32 * 9 * 64 + 64) + (4096 * 512 + 512) + (512 * 10 + 10));
}

TEST(Cnn, fits_other_images) {
  Cnn cnn(CnnOptions{.channels = 1, .height = 28, .width = 28, .classes = 7});
  EXPECT_EQ(cnn->forward(torch::zeros({2, 1, 28, 28})).sizes(), (std::vector<std::int64_t>{2, 7}));
  EXPECT_THROW(Cnn(CnnOptions{.height = 30}), Error);
}

TEST(MnistNet, has_the_layers_it_says) {
  MnistNet net;
  EXPECT_EQ(net->forward(torch::zeros({5, 1, 28, 28})).sizes(), (std::vector<std::int64_t>{5, 10}));
  EXPECT_EQ(num_parameters(*net),
            (25 * 20 + 20) + (20 * 25 * 20 + 20) + (320 * 50 + 50) + (50 * 10 + 10));
}

}  // namespace
}  // namespace paceline::models
