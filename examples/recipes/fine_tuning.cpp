// Fine-tuning: the body of a trained model, with a new head for another task. First the new head
// learns while the body is frozen; then the whole model learns, the body at a smaller rate. The
// ranks share one copy of the parameters (stage 3). The weights are those of checkpoint_loop or
// early_stop:
//
//   paceline run --nproc-per-node 2 fine_tuning run                      # from a checkpoint
//   paceline run --nproc-per-node 2 fine_tuning run/best.safetensors     # from a file
//
// For a file of torch::save, call torch::load(net, path) on the old model, then set
// net->head = net->replace_module("head", head), because forward() uses the member. Make the
// optimizer after that, and then call fully_shard().

#include <cstdio>
#include <string>

#include <torch/torch.h>

#include "paceline/paceline.h"

namespace data = paceline::data;
namespace optim = paceline::optim;
namespace train = paceline::train;

// Points of three classes: outside the unit circle, and inside it to the left and to the right.
std::shared_ptr<data::TensorDataset> make_points(std::int64_t count) {
  const auto points = torch::rand({count, 2}) * 2 - 1;
  const auto side = torch::where(points.select(1, 0) < 0, 1, 2);
  const auto label = torch::where(points.square().sum(1) < 1, side, 0).to(torch::kLong);
  return std::make_shared<data::TensorDataset>("points", std::vector<at::Tensor>{points, label});
}

int main(int argc, char** argv) {
  const std::string path = argc > 1 ? argv[1] : "run";
  const auto group = paceline::init_process_group();
  torch::manual_seed(2);  // every rank makes the same points
  const auto points = make_points(2000), unseen = make_points(500);
  data::DataLoader loader(points, data::DistributedSampler(points->size(), group),
                          {.global_batch_size = 40});
  data::DataLoader test_loader(unseen, data::evaluation_indices(unseen->size(), group),
                               {.batch_size = 100});

  // The head has three classes instead of two, so it keeps its new weights.
  torch::nn::Linear head(32, 3);
  torch::nn::Sequential net(torch::nn::Linear(2, 32), torch::nn::ReLU(), head);
  auto weights = paceline::weights_of(*net);
  const auto trained = path.ends_with(".safetensors") ? paceline::read_weights(path)
                                                      : train::read_checkpoint(path).weights;
  for (const auto& [name, tensor] : trained)
    if (!name.starts_with("2.")) weights.at(name) = tensor;
  paceline::load_weights(*net, weights);  // before fully_shard()

  const auto body = net->ptr(0)->parameters();
  optim::AdamW optimizer({{head->parameters(), {.lr = 1e-2}}, {body, {.lr = 1e-3}}});
  auto model = paceline::fully_shard(net, group, optimizer, {.stage = 3});

  const auto accuracy = [&] {
    model.eval();
    const auto result =
        train::evaluate(group, test_loader, [&](const auto& x) { return model(x); });
    model.train();
    return result.accuracy;
  };
  const double before = accuracy();
  for (int epoch = 0; epoch < 10; ++epoch) {
    // All ranks freeze and unfreeze alike; a change takes effect in the next forward pass.
    for (at::Tensor parameter : body) parameter.set_requires_grad(epoch >= 3);
    for (const data::Batch& batch : loader.epoch(epoch)) {
      optimizer.zero_grad();
      const auto loss = torch::nn::functional::cross_entropy(model(batch.data), batch.target);
      batch.weighted(loss).backward();
      optimizer.step();
    }
  }
  const double after = accuracy();
  if (group->rank() == 0) {
    paceline::write_weights("fine_tuned.safetensors", paceline::weights_of(*net));
    std::printf("accuracy %.2f before, %.2f after\n", before, after);
  }
}
