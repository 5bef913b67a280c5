// Compares DistributedDataParallel with Python's PyTorch: with unused parameters, with
// communication hooks and with SyncBatchNorm; the losses of every step and the weights after the
// last one. ddp_reference.py describes the files that it writes.

#include "tests/parity/ddp_parity.h"

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <memory>
#include <string>

#include "paceline/engine/collectives/group/process_group.h"
#include "paceline/training/parallel/communication_hook.h"
#include "paceline/training/train/training_step.h"

#include "tests/harness/process_ranks.h"

namespace paceline::parity {
namespace {

bool is_used(int rank, std::int64_t step) {
  return step % 3 == 2 || (step % 3 == 1 && rank == step % 2);
}

class DdpParity : public DdpReferenceTest<DdpParity> {
 public:
  static constexpr const char* kCases = "plain unused fp16 bf16 powersgd1 powersgd2 batch_norm";

 protected:
  static std::uint64_t seed_of_factors() {
    std::uint64_t seed = 0;
    std::ifstream(reference().file("powersgd.seed")) >> seed;
    return seed;
  }

  // Trains as Python did; throws at the first difference above the tolerance, which is relative for
  // losses and absolute for weights. Returns the largest differences.
  static std::string train(ProcessGroup& group, const std::string& name,
                           std::shared_ptr<CommunicationHook> hook, double tolerance) {
    at::set_num_threads(1);
    const std::shared_ptr<ProcessGroup> shared(&group, [](ProcessGroup*) {});
    const bool is_norm = name == "batch_norm";
    const auto net = std::make_shared<DdpNet>(shared, is_norm);
    take_weights(*net);
    const auto losses = reference().tensor(name + ".losses.f32", {kDdpRanks, kDdpSteps});
    const auto all_inputs = inputs(), all_labels = labels();

    DistributedDataParallel model(net, shared);
    if (hook) model.register_comm_hook(std::move(hook));
    const auto trained = trained_of(*net);
    torch::optim::SGD optimizer(trained, torch::optim::SGDOptions(0.05).momentum(0.9));
    double largest = 0;
    for (std::int64_t step = 0; step < kDdpSteps; ++step) {
      drop_gradients(trained);
      const auto logits =
          model(all_inputs[step][group.rank()], name != "unused" || is_used(group.rank(), step));
      const auto loss =
          torch::nn::functional::cross_entropy(logits, all_labels[step][group.rank()]);
      loss.backward();
      optimizer.step();
      double mine = loss.item<float>();
      // The loss of the whole batch is the mean of the ranks' losses.
      if (is_norm) mine = all_reduce_value(group, mine) / kDdpRanks;
      largest = std::max(
          largest, require_same_loss(fmt::format("{}, rank {}, step {}", name, group.rank(), step),
                                     mine, losses[group.rank()][step].item<float>(), tolerance));
    }
    return fmt::format("{:.1e}, weights {:.1e}", largest, require_weights(name, *net, tolerance));
  }

  // `make_hook` runs in each rank's process; it may return null.
  template <class MakeHook>
  static void expect_pythons(const std::string& name, const MakeHook& make_hook, double tolerance) {
    const auto results = harness::run_process_ranks(
        kDdpRanks, [&](ProcessGroup& group) { return train(group, name, make_hook(), tolerance); });
    for (const auto& result : results) {
      EXPECT_EQ(result.exit_code, 0) << result.report;
      std::printf("%s: largest difference of losses %s\n", name.c_str(), result.report.c_str());
    }
  }
};

std::shared_ptr<CommunicationHook> no_hook() { return nullptr; }

TEST_F(DdpParity, a_plain_training_is_pythons) { expect_pythons("plain", no_hook, 1e-5); }

// The extra layer is used by no rank, by one rank, or by both, in turn.
TEST_F(DdpParity, unused_parameters_are_pythons) { expect_pythons("unused", no_hook, 1e-5); }

TEST_F(DdpParity, float16_compression_is_pythons) {
  // A gradient that is rounded in the other direction differs by 2^-11 of its size, as was seen on
  // a Sapphire Rapids.
  expect_pythons(
      "fp16", [] { return std::make_shared<CompressHook>(at::kHalf); }, 1e-4);
}

TEST_F(DdpParity, bfloat16_compression_is_pythons) {
  // A gradient that is rounded in the other direction differs by 2^-8 of its size.
  expect_pythons(
      "bf16", [] { return std::make_shared<CompressHook>(at::kBFloat16); }, 1e-3);
}

TEST_F(DdpParity, power_sgd_of_ranks_1_and_2_is_pythons) {
  for (const std::int64_t rank : {1, 2}) {
    expect_pythons(
        fmt::format("powersgd{}", rank),
        [rank] {
          return std::make_shared<PowerSGDHook>(
              PowerSGDOptions{.rank = rank, .start_step = 2, .seed = seed_of_factors()});
        },
        1e-4);
  }
}

TEST_F(DdpParity, sync_batch_norm_is_pythons_batch_norm_on_the_whole_batch) {
  expect_pythons("batch_norm", no_hook, 1e-5);
}

}  // namespace
}  // namespace paceline::parity
