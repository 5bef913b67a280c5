// Uses the weights of a run without its optimizer and its ranks. checkpoint_loop made the run:
//
//   inference FOLDER

#include <cstdio>

#include <torch/torch.h>

#include "paceline/paceline.h"

int main(int argc, char** argv) {
  torch::nn::Sequential net(torch::nn::Linear(2, 32), torch::nn::ReLU(), torch::nn::Linear(32, 2));
  const auto checkpoint = paceline::train::read_checkpoint(argc > 1 ? argv[1] : "run");
  paceline::load_weights(*net, checkpoint.weights);
  net->eval();
  const torch::NoGradGuard no_grad;
  const auto points = torch::tensor({{0.0F, 0.0F}, {0.9F, 0.9F}, {0.5F, -0.5F}, {-0.95F, 0.8F}});
  const auto inside = net->forward(points).argmax(1);
  for (std::int64_t i = 0; i < points.size(0); ++i)
    std::printf("(%5.2f, %5.2f) is %s the circle\n", points[i][0].item<double>(),
                points[i][1].item<double>(), inside[i].item<bool>() ? "inside" : "outside");
}
