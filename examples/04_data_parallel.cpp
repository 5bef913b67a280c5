// One process, several replicas: trains a small network on random data, and every replica prints
// the sizes of its part of the batch. 04_data_parallel uses 2 replicas, 04_data_parallel 3 uses 3.

#include <cstdio>
#include <cstdlib>
#include <sstream>

#include <torch/torch.h>

#include "paceline/paceline.h"

struct ASimpleNetImpl : torch::nn::Cloneable<ASimpleNetImpl> {
  ASimpleNetImpl() { reset(); }
  void reset() override {
    first = register_module("first", torch::nn::Linear(5, 8));
    second = register_module("second", torch::nn::Linear(8, 2));
  }
  torch::Tensor forward(const torch::Tensor& input) {
    const auto output = second(torch::relu(first(input)));
    std::ostringstream line;  // replicas run at the same time, so each line is printed by one call
    line << "\tIn Model: input size " << input.sizes() << " output size " << output.sizes() << '\n';
    std::fputs(line.str().c_str(), stdout);
    return output;
  }
  torch::nn::Linear first{nullptr}, second{nullptr};
};
TORCH_MODULE(ASimpleNet);

int main(int argc, char** argv) {
  const int replicas = argc > 1 ? std::atoi(argv[1]) : 2;
  torch::manual_seed(0);
  const auto inputs = torch::randn({100, 5});
  const auto targets = torch::stack({inputs.sum(1), inputs.square().sum(1)}, 1);

  paceline::DataParallel<ASimpleNetImpl> model(ASimpleNet(), replicas);
  torch::optim::SGD optimizer(model.parameters(), 0.02);
  for (int epoch = 0; epoch < 5; ++epoch) {
    double loss_sum = 0;
    for (int begin = 0; begin < 100; begin += 30) {
      const auto input = inputs.slice(0, begin, begin + 30);
      optimizer.zero_grad();
      const auto output = model(input);
      std::ostringstream line;
      line << "Outside: input size " << input.sizes() << " output size " << output.sizes() << '\n';
      std::fputs(line.str().c_str(), stdout);
      const auto loss = torch::mse_loss(output, targets.slice(0, begin, begin + 30));
      loss.backward();
      optimizer.step();
      loss_sum += loss.item<double>();
    }
    std::printf("epoch %d: mean loss %.4f\n", epoch, loss_sum / 4);
  }
}
