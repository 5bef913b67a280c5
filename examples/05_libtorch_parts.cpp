// Uses LibTorch's own data loader, optimizer and file format on any number of ranks:
//
//   paceline run --nproc-per-node 2 05_libtorch_parts FILE

#include <cstdio>
#include <string>

#include <torch/torch.h>

#include "paceline/paceline.h"

// Random points, and for each one whether it lies inside the unit circle.
struct Points : torch::data::datasets::Dataset<Points> {
  torch::data::Example<> get(std::size_t index) override {
    return {data[static_cast<std::int64_t>(index)], target[static_cast<std::int64_t>(index)]};
  }
  torch::optional<std::size_t> size() const override {
    return static_cast<std::size_t>(data.size(0));
  }
  torch::Tensor data = torch::rand({1000, 2}) * 2 - 1;
  torch::Tensor target = (data.square().sum(1) < 1).to(torch::kLong);
};

torch::nn::Sequential make_model() {
  return torch::nn::Sequential(torch::nn::Linear(2, 32), torch::nn::ReLU(),
                               torch::nn::Linear(32, 2));
}

int main(int argc, char** argv) {
  const auto group = paceline::init_process_group();
  torch::manual_seed(0);  // every rank draws the same points
  Points points;
  paceline::data::TorchSampler sampler({1000, group->world_size(), group->rank()});
  const auto loader = torch::data::make_data_loader(points.map(torch::data::transforms::Stack<>()),
                                                    sampler, /*batch_size=*/50);

  paceline::DistributedDataParallel model(make_model(), group);
  torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.2).momentum(0.9));
  for (int epoch = 0; epoch < 10; ++epoch) {
    sampler.set_epoch(epoch);
    for (const auto& batch : *loader) {
      optimizer.zero_grad();
      torch::nn::functional::cross_entropy(model->forward(batch.data), batch.target).backward();
      optimizer.step();
    }
  }

  const std::string file = argc > 1 ? argv[1] : "net.pt";
  if (group->rank() == 0) torch::save(model.module_ptr(), file);
  group->barrier();
  torch::nn::Sequential loaded = make_model();
  torch::load(loaded, file);
  const auto correct = loaded->forward(points.data).argmax(1).eq(points.target);
  const std::string line = "rank " + std::to_string(group->rank()) + ": " +
                           std::to_string(correct.sum().item<int>()) + " of 1000 correct";
  for (const std::string& text : paceline::gather_objects(group, line, 0))
    std::printf("%s\n", text.c_str());
}
