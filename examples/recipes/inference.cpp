// Uses the weights of a run without its optimizer and its ranks: those of the last checkpoint of
// checkpoint_loop, or those of the best epoch, which early_stop wrote to a file:
//
//   inference FOLDER
//   inference FOLDER/best.safetensors

#include <cstdio>
#include <string>

#include <torch/torch.h>

#include "paceline/paceline.h"

int main(int argc, char** argv) {
  torch::nn::Sequential net(torch::nn::Linear(2, 32), torch::nn::ReLU(), torch::nn::Linear(32, 2));
  const std::string path = argc > 1 ? argv[1] : "run";
  paceline::load_weights(*net, path.ends_with(".safetensors")
                                   ? paceline::read_weights(path)
                                   : paceline::train::read_checkpoint(path).weights);
  net->eval();
  const torch::NoGradGuard no_grad;
  const auto points = torch::tensor({{0.0F, 0.0F}, {0.9F, 0.9F}, {0.5F, -0.5F}, {-0.95F, 0.8F}});
  const auto inside = net->forward(points).argmax(1);
  for (std::int64_t i = 0; i < points.size(0); ++i)
    std::printf("(%5.2f, %5.2f) is %s the circle\n", points[i][0].item<double>(),
                points[i][1].item<double>(), inside[i].item<bool>() ? "inside" : "outside");
}
