// Compares DataParallel with Python's PyTorch. On a CPU, Python's DataParallel has no devices and
// runs the module on the whole batch: a training with 1 to 5 replicas is compared with that, losses
// and weights to 1e-5. A CPU cannot show how DataParallel works on several devices, so that is
// compared with the documented formula, computed in Python: the batch is cut exactly as torch.chunk
// cuts it; the outputs of the parts are concatenated and their gradients are added, to 1e-5,
// relative or absolute.

#include <algorithm>
#include <cstdio>
#include <mutex>
#include <string>
#include <vector>

#include "paceline/training/parallel/data_parallel.h"

#include "tests/parity/ddp_parity.h"

namespace paceline::parity {
namespace {

constexpr double kOfReplicas = 1e-5;

// Like the reference's network, but it can be cloned. Records how many samples each replica got.
struct ReplicaNetImpl : torch::nn::Cloneable<ReplicaNetImpl> {
  ReplicaNetImpl() { ReplicaNetImpl::reset(); }
  void reset() override {
    first = register_module("first", torch::nn::Linear(kDdpWidth, 30));
    extra = register_module("extra", torch::nn::Linear(30, 30));
    norm = register_module("norm", torch::nn::BatchNorm1d(30));
    last = register_module("last", torch::nn::Linear(30, 10));
    for (auto& parameter : norm->parameters()) parameter.requires_grad_(false);
  }
  at::Tensor forward(const at::Tensor& input) {
    {
      const std::lock_guard lock(seen->mutex);
      seen->sizes.push_back(input.size(0));
    }
    const at::Tensor features = at::relu(first(input));
    return last(features + extra(features));
  }

  struct Seen {
    std::mutex mutex;
    std::vector<std::int64_t> sizes;
  };
  std::shared_ptr<Seen> seen = std::make_shared<Seen>();  // shared by all clones
  torch::nn::Linear first{nullptr}, extra{nullptr}, last{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
};
TORCH_MODULE(ReplicaNet);

class DataParallelParity : public DdpReferenceTest<DataParallelParity> {
 public:
  static constexpr const char* kCases = "whole parts";
};

TEST_F(DataParallelParity, a_training_is_pythons_on_the_whole_batch) {
  at::set_num_threads(1);
  const auto losses = reference().tensor("whole.losses.f32", {kDdpRanks, kDdpSteps})[0];
  const auto all_inputs = inputs().flatten(1, 2), all_labels = labels().flatten(1, 2);
  for (const int replicas : {1, 2, 3, 4, 5}) {
    ReplicaNet net;
    take_weights(*net);
    DataParallel<ReplicaNetImpl> model(net, replicas);
    const auto trained = trained_of(*net);
    torch::optim::SGD optimizer(trained, torch::optim::SGDOptions(0.05).momentum(0.9));
    double largest = 0;
    for (std::int64_t step = 0; step < kDdpSteps; ++step) {
      drop_gradients(trained);
      const auto loss =
          torch::nn::functional::cross_entropy(model(all_inputs[step]), all_labels[step]);
      loss.backward();
      optimizer.step();
      largest = std::max(
          largest, require_same_loss(fmt::format("{} replicas, step {}", replicas, step),
                                     loss.item<float>(), losses[step].item<float>(), kOfReplicas));
    }
    std::printf("%d replicas: largest difference of losses %.1e, weights %.1e\n", replicas, largest,
                require_weights("whole", *net, kOfReplicas));
  }
}

TEST_F(DataParallelParity, parts_outputs_and_gradients_are_the_documented_ones) {
  at::set_num_threads(1);
  const std::vector<std::int64_t> all_samples = {1, 2, 3, 5, 7, 8, 10, 16};
  constexpr int kMaxReplicas = 5;
  const auto num_cases = static_cast<std::int64_t>(all_samples.size()) * kMaxReplicas;
  const auto chunks = reference().tensor("chunks.i64", {num_cases, kMaxReplicas}, at::kLong);
  const auto expected = reference().row("parts");
  const auto rows = inputs().flatten(0, 2);
  std::int64_t number = 0, begin = 0;
  const auto expect_next = [&](const at::Tensor& own) {
    const at::Tensor pythons = expected.narrow(0, begin, own.numel());
    begin += own.numel();
    EXPECT_TRUE(
        at::allclose(own.detach().flatten().to(at::kDouble), pythons, kOfReplicas, kOfReplicas))
        << (own.detach().flatten().to(at::kDouble) - pythons).abs().max();
  };
  for (const std::int64_t samples : all_samples) {
    for (int replicas = 1; replicas <= kMaxReplicas; ++replicas, ++number) {
      SCOPED_TRACE(fmt::format("{} samples, {} replicas", samples, replicas));
      ReplicaNet net;
      take_weights(*net);
      DataParallel<ReplicaNetImpl> model(net, replicas);
      const at::Tensor output = model(rows.narrow(0, 0, samples));
      output.square().sum().backward();
      auto sizes = net->seen->sizes;
      std::sort(sizes.begin(), sizes.end(), std::greater<>());  // replicas run at the same time
      sizes.resize(kMaxReplicas);
      EXPECT_TRUE(at::equal(at::tensor(sizes, at::kLong), chunks[number]));
      expect_next(output);
      for (const auto& parameter : trained_of(*net)) expect_next(parameter.grad());
    }
  }
  EXPECT_EQ(begin, expected.numel());
}

}  // namespace
}  // namespace paceline::parity
