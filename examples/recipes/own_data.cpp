// A data set of your own, from a function, with samples of different lengths, and an evaluation
// with metrics of your own:
//
//   paceline run --nproc-per-node 2 own_data

#include <cstdio>
#include <random>

#include <torch/torch.h>

#include "paceline/paceline.h"

namespace data = paceline::data;

constexpr std::int64_t kPad = 10;  // the tokens are 0 to 9

// Sample `index`: a sequence of tokens, and whether it has more sevens than threes.
data::Sample make_sample(std::int64_t index) {
  std::mt19937 random(static_cast<unsigned>(index));
  std::vector<std::int64_t> tokens(8 + random() % 25);
  std::int64_t lead = 0;
  for (auto& token : tokens) {
    token = static_cast<std::int64_t>(random() % 10);
    lead += (token == 7) - (token == 3);
  }
  return {at::tensor(tokens), at::scalar_tensor(lead > 0 ? 1 : 0, at::kLong)};
}

struct NetImpl : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& tokens) {
    return last->forward(words->forward(tokens).sum(1));
  }
  torch::nn::Embedding words = register_module(
      "words", torch::nn::Embedding(torch::nn::EmbeddingOptions(11, 16).padding_idx(kPad)));
  torch::nn::Linear last = register_module("last", torch::nn::Linear(16, 2));
};
TORCH_MODULE(Net);

int main() {
  const auto group = paceline::init_process_group();
  torch::manual_seed(group->rank());
  // The function runs in the loader's threads; the second argument is the epoch.
  const auto training = std::make_shared<data::SampleDataset>(
      "sequences", 4000, [](std::int64_t index, std::int64_t) { return make_sample(index); },
      data::padded({double(kPad)}));
  const auto test = std::make_shared<data::SampleDataset>(
      "test sequences", 501,
      [](std::int64_t index, std::int64_t) { return make_sample(1'000'000 + index); },
      data::padded({double(kPad)}));

  const data::DistributedSampler sampler(training->size(), group);
  data::DataLoader loader(training, sampler, {.batch_size = 16, .num_threads = 2});
  paceline::DistributedDataParallel model(Net(), group);
  torch::optim::Adam optimizer(model.parameters(), torch::optim::AdamOptions(1e-2));
  for (int epoch = 0; epoch < 3; ++epoch) {
    for (const data::Batch& batch : loader.epoch(epoch)) {
      optimizer.zero_grad();
      torch::nn::functional::cross_entropy(model.forward(batch.data), batch.target).backward();
      optimizer.step();
    }
  }

  // Each rank evaluates its share, every sample once. The counts of all ranks are added up.
  data::DataLoader tests(test, data::evaluation_indices(test->size(), group), {.batch_size = 50});
  const torch::NoGradGuard no_grad;
  auto counts = torch::zeros({3}, torch::kLong);  // true positives, predicted and actual positives
  for (const data::Batch& batch : tests.epoch(0)) {
    const auto predicted = model.forward(batch.data).argmax(1);
    counts += torch::stack({(predicted * batch.target).sum(), predicted.sum(), batch.target.sum()});
  }
  paceline::all_reduce(group, counts);
  const double hits = counts[0].item<double>();
  if (group->rank() == 0)
    std::printf("precision %.3f, recall %.3f of %ld positive samples\n",
                hits / counts[1].item<double>(), hits / counts[2].item<double>(),
                static_cast<long>(counts[2].item<std::int64_t>()));
}
