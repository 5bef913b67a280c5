// A training program with one mistake: mistakes NAME. docs/mistakes.md shows each mistake with the
// message about it.
//
//   none                two epochs without a mistake
//   same-epoch          every epoch is taken as number 0
//   module-forward      the forward pass runs through the module, not through the wrapper
//   other-model         rank 1 has a wider layer
//   other-count         rank 1 sums up another number of values
//   leaves-early        rank 1 returns from main() after its first step
//   throws-before-init  the data is read before init_process_group(), and does not exist
//   throws              rank 1 throws an exception that is not caught
//   wrong-shape         rank 1 gives the model images of another size
//   unequal-batches     rank 1 leaves out the last batch of an epoch
//   unused-parameter    a layer takes no part in the loss, although every layer must
//   evaluates-alone     rank 0 evaluates the model between two steps, with gradients
//   evaluate-on-one     only rank 0 calls train::evaluate()

#include <cstdio>
#include <functional>
#include <map>
#include <stdexcept>
#include <string>

#include <torch/torch.h>

#include "paceline/paceline.h"

namespace {

namespace data = paceline::data;

struct Net : torch::nn::Module {
  explicit Net(std::int64_t width) {
    first = register_module("first", torch::nn::Linear(16, width));
    norm = register_module("norm", torch::nn::BatchNorm1d(width));
    last = register_module("last", torch::nn::Linear(width, 3));
    spare = register_module("spare", torch::nn::Linear(width, 3));
  }
  at::Tensor forward(const at::Tensor& images) {
    const auto hidden = torch::relu(norm(first(images.flatten(1))));
    return uses_spare ? last(hidden) + spare(hidden) : last(hidden);
  }
  torch::nn::Linear first{nullptr}, last{nullptr}, spare{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
  bool uses_spare = true;
};

std::shared_ptr<data::ImageSamples> small_dataset() {
  data::ImageDataset dataset;
  dataset.name = "small";
  dataset.images = torch::randint(256, {64, 1, 4, 4}, torch::kUInt8);
  dataset.labels = torch::randint(3, {64}, torch::kLong);
  dataset.classes = {"a", "b", "c"};
  return std::make_shared<data::ImageSamples>(dataset);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string mistake = argc > 1 ? argv[1] : "none";
  if (mistake == "throws-before-init") data::load_cifar10("data", data::Split::kTrain);
  const auto group = paceline::init_process_group();
  const bool is_odd = group->rank() == 1;  // the rank that makes the mistake, if only one does
  const auto makes = [&](const char* name) { return mistake == name; };

  torch::manual_seed(0);
  const auto dataset = small_dataset();
  const data::DistributedSampler sampler(dataset->size(), group->world_size(), group->rank());
  data::DataLoader loader(dataset, sampler, {.batch_size = 8});
  const auto net = std::make_shared<Net>(makes("other-model") && is_odd ? 12 : 8);
  net->uses_spare = !makes("unused-parameter");
  paceline::DistributedDataParallel model(net, group,
                                          {.require_all_used = makes("unused-parameter")});
  torch::optim::SGD optimizer(model->parameters(), 0.05);

  float loss_sum = 0;
  for (int epoch = 0; epoch < 2; ++epoch) {
    for (const data::Batch& batch : loader.epoch(makes("same-epoch") ? 0 : epoch)) {
      if (makes("unequal-batches") && is_odd && loader.exhausted()) continue;
      const auto images = makes("wrong-shape") && is_odd ? batch.data.narrow(3, 0, 3) : batch.data;
      const auto logits = makes("module-forward") ? net->forward(images) : model->forward(images);
      const auto loss = torch::nn::functional::cross_entropy(logits, batch.target);
      optimizer.zero_grad();
      loss.backward();
      optimizer.step();
      loss_sum += loss.item<float>();
      if (makes("leaves-early") && is_odd) return 0;
      if (makes("throws") && is_odd) throw std::runtime_error("no such key: learning_rate");
      if (makes("evaluates-alone") && group->rank() == 0) {
        model->eval();
        model->forward(images);
        model->train();
      }
    }
    if (makes("evaluate-on-one") && group->rank() == 0) {
      data::DataLoader tests(dataset, data::evaluation_indices(dataset->size(), group), {});
      paceline::train::evaluate(group, tests,
                                [&](const at::Tensor& images) { return model->forward(images); });
    }
    std::vector<float> sums(makes("other-count") && is_odd ? 2 : 1, loss_sum);
    group->all_reduce(std::span(sums));
  }
  if (group->rank() == 0) std::printf("two epochs\n");
}
