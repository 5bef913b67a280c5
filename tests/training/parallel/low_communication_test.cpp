// Learners that train on their own for some steps and then take an outer step together.

#include "paceline/training/parallel/low_communication.h"

#include <mutex>
#include <vector>

#include <gtest/gtest.h>

#include <torch/torch.h>

#include "paceline/engine/collectives/group/device_mesh.h"
#include "paceline/training/optim/rules/update_rules.h"
#include "paceline/training/parallel/data_parallel_state.h"
#include "paceline/training/parallel/distributed_data_parallel.h"
#include "paceline/training/parallel/fully_shard.h"
#include "paceline/training/parallel/reducer/reducer.h"
#include "paceline/training/tensor/collectives.h"

#include "tests/harness/borrowed_group.h"
#include "tests/harness/expect_error.h"
#include "tests/harness/thread_ranks.h"

namespace paceline::low_communication_tests {
namespace {

using harness::borrowed;
using harness::run_ranks_ok;

constexpr int kSteps = 12;

torch::nn::Sequential make_net() {
  static std::mutex making;  // the ranks are threads, which share LibTorch's generator
  const std::lock_guard lock(making);
  torch::manual_seed(5);
  return torch::nn::Sequential(torch::nn::Linear(6, 20), torch::nn::Tanh(),
                               torch::nn::Linear(20, 3));
}

// The loss of a learner's batch.
at::Tensor loss_of(torch::nn::Sequential& net, int learner, int step) {
  const auto generator = at::detail::createCPUGenerator(learner * 1000 + step);
  const auto input = at::randn({8, 6}, generator);
  return torch::mse_loss(net->forward(input), at::randn({8, 3}, generator));
}

std::vector<at::Tensor> copies(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> result;
  for (const auto& tensor : tensors) result.push_back(tensor.detach().clone());
  return result;
}

void expect_equal(const std::vector<at::Tensor>& expected, const std::vector<at::Tensor>& got) {
  ASSERT_EQ(expected.size(), got.size());
  for (std::size_t i = 0; i < got.size(); ++i)
    EXPECT_TRUE(at::equal(expected[i], got[i])) << i << "\n" << expected[i] << "\n" << got[i];
}
void expect_close(const std::vector<at::Tensor>& expected, const std::vector<at::Tensor>& got,
                  double tolerance) {
  ASSERT_EQ(expected.size(), got.size());
  for (std::size_t i = 0; i < got.size(); ++i)
    EXPECT_TRUE(at::allclose(expected[i], got[i], 0, tolerance))
        << i << "\n"
        << (expected[i] - got[i]).abs().max();
}

// Two learners in one process; the outer optimizer is LibTorch's SGD.
std::vector<at::Tensor> two_learners_alone(int steps, const LowCommunicationOptions& options) {
  auto outer = make_net();
  std::vector<torch::nn::Sequential> nets = {make_net(), make_net()};
  std::vector<torch::optim::SGD> inner;
  for (auto& net : nets) inner.emplace_back(net->parameters(), 0.1);
  torch::optim::SGD outer_sgd(outer->parameters(), torch::optim::SGDOptions(options.outer_lr)
                                                       .momentum(options.outer_momentum)
                                                       .nesterov(options.outer_momentum > 0));
  for (int step = 1; step <= steps; ++step) {
    for (int learner = 0; learner < 2; ++learner) {
      nets[learner]->zero_grad();
      loss_of(nets[learner], learner, step).backward();
      inner[learner].step();
    }
    if (step % options.period != 0) continue;
    const at::NoGradGuard no_grad;
    const auto all = outer->parameters();
    for (std::size_t i = 0; i < all.size(); ++i) {
      const auto difference = [&](int learner) {
        return all[i].detach() - nets[learner]->parameters()[i].detach();
      };
      all[i].mutable_grad() = (difference(0) + difference(1)) / 2;
    }
    outer_sgd.step();
    for (auto& net : nets)
      for (std::size_t i = 0; i < all.size(); ++i) net->parameters()[i].copy_(all[i]);
  }
  return copies(nets[0]->parameters());
}

// A rank's half of the job: ranks 0 and 1 of 4 are the first learner.
struct LearnerRank {
  LearnerRank(ProcessGroup& group, int ranks_of_learner, const LowCommunicationOptions& options)
      : mesh(borrowed(group),
             {{"learner", group.world_size() / ranks_of_learner}, {"dp", ranks_of_learner}}),
        model(net.ptr(), mesh.group("dp")),
        optimizer(net->parameters(), {.lr = 0.1}),
        outer(mesh.group("learner"), mesh.group("dp"), net->parameters(), options) {}

  void step(int step, int learner) {
    optimizer.zero_grad();
    // The wrapper's forward() would need the type of the input; a pass announces itself.
    const detail::ForwardPass pass(model.state(), 8);
    loss_of(net, learner, step).backward();
    optimizer.step();
    outer.step();
  }
  void train(int steps) {
    for (int i = 1; i <= steps; ++i) step(i, mesh.rank("learner"));
    outer.finish();
  }

  torch::nn::Sequential net = make_net();
  DeviceMesh mesh;
  DistributedDataParallel<torch::nn::SequentialImpl> model;
  optim::SGD optimizer;
  LowCommunication outer;
};

TEST(LowCommunication, TrainsAsTwoLearnersInOneProcess) {
  const LowCommunicationOptions options{.period = 4};
  const auto expected = two_learners_alone(kSteps, options);
  for (const int ranks_of_learner : {1, 2}) {
    run_ranks_ok(2 * ranks_of_learner, [&](ProcessGroup& group) {
      LearnerRank rank(group, ranks_of_learner, options);
      rank.train(kSteps);
      expect_close(expected, rank.net->parameters(), 1e-6);
      EXPECT_TRUE(rank.outer.is_synchronised());
      EXPECT_EQ(rank.outer.num_rounds(), 3);
    });
  }
}

TEST(LowCommunication, HasTheSameBitsOnEveryRank) {
  for (const at::ScalarType wire : {at::kFloat, at::kBFloat16, at::kChar}) {
    run_ranks_ok(4, [&](ProcessGroup& group) {
      LearnerRank rank(group, 2, {.period = 3, .wire = wire});
      rank.train(kSteps);
      for (const auto& parameter : rank.net->parameters())
        for (const auto& other : all_gather(group, parameter.detach()))
          EXPECT_TRUE(at::equal(other, parameter.detach()));
    });
  }
}

// All learners have the same data, so an outer step of 1 without momentum changes nothing, whatever
// the fragments and the delay.
TEST(LowCommunication, KeepsWhatIsTrainedWhileAFragmentTravels) {
  run_ranks_ok(4, [](ProcessGroup& group) {
    auto alone = make_net();
    optim::SGD sgd(alone->parameters(), {.lr = 0.1});
    LearnerRank rank(group, 2,
                     {.period = 6, .fragments = 3, .delay = 1, .outer_lr = 1, .outer_momentum = 0});
    for (int step = 1; step <= 20; ++step) {
      sgd.zero_grad();
      loss_of(alone, 0, step).backward();
      sgd.step();
      rank.step(step, 0);
    }
    rank.outer.finish();
    EXPECT_EQ(rank.outer.num_rounds(), 10);
    expect_close(alone->parameters(), rank.net->parameters(), 1e-6);
  });
}

// Post-local SGD: after the warm-up the learners take the mean of their parameters periodically.
TEST(LowCommunication, AveragesParametersAfterAWarmUp) {
  run_ranks_ok(2, [](ProcessGroup& group) {
    at::Tensor own = at::zeros({3});
    DeviceMesh mesh(borrowed(group), {{"learner", 2}, {"dp", 1}});
    LowCommunication outer(mesh.group("learner"), mesh.group("dp"), {own},
                           {.period = 3, .warmup_steps = 2, .outer_lr = 1, .outer_momentum = 0});
    for (int step = 1; step <= 8; ++step) {
      own += group.rank();
      outer.step();
      const bool is_equal = step <= 2 || step == 5 || step == 8;
      EXPECT_EQ(outer.is_synchronised(), is_equal) << step;
      const float both = static_cast<float>(step) / 2;  // the mean of what all have added
      const float since = static_cast<float>(step <= 2 ? 0 : (step - 2) % 3);
      const float expected =
          is_equal ? both : (static_cast<float>(step) - since) / 2 + since * group.rank();
      EXPECT_TRUE(at::allclose(own, at::full({3}, expected))) << step << own;
    }
  });
}

// Values lost to rounding are sent later, so the error of 50 rounds is that of a few. (The mean
// that a bfloat16 sum arrives as is rounded once more.)
TEST(LowCommunication, FeedsErrorsBack) {
  for (const auto& [wire, tolerance] :
       {std::pair(at::kBFloat16, 6e-3), std::pair(at::kChar, 2e-3)}) {
    run_ranks_ok(2, [&](ProcessGroup& group) {
      at::Tensor exact = at::zeros({1000}), coarse = at::zeros({1000});
      DeviceMesh mesh(borrowed(group), {{"learner", 2}, {"dp", 1}});
      const LowCommunicationOptions plain{.period = 1, .outer_lr = 1, .outer_momentum = 0};
      LowCommunicationOptions rounded = plain;
      rounded.wire = wire;
      LowCommunication one(mesh.group("learner"), mesh.group("dp"), {exact}, plain);
      LowCommunication two(mesh.group("learner"), mesh.group("dp"), {coarse}, rounded);
      for (int step = 0; step < 50; ++step) {
        const auto update =
            at::randn({1000}, at::detail::createCPUGenerator(step * 2 + group.rank())) * 0.1;
        exact += update;
        coarse += update;
        one.step();
        two.step();
      }
      EXPECT_LT((exact - coarse).abs().max().item<double>(), tolerance);
    });
  }
}

TEST(LowCommunication, CountsTheBytesThatItSends) {
  run_ranks_ok(4, [](ProcessGroup& group) {
    DeviceMesh mesh(borrowed(group), {{"learner", 2}, {"dp", 2}});
    const auto bytes = [&](at::ScalarType wire) {
      LowCommunication outer(mesh.group("learner"), mesh.group("dp"), {at::zeros({1024})},
                             {.period = 1, .wire = wire});
      outer.step();
      return outer.bytes_sent();
    };
    EXPECT_EQ(bytes(at::kFloat), 512 * 4);
    EXPECT_EQ(bytes(at::kBFloat16), 512 * 2);
    EXPECT_EQ(bytes(at::kChar), 512 + 2 * 4);
  });
}

// A learner divides its parameters: one copy a host, which only the optimizer may write.
TEST(LowCommunication, SynchronisesLearnersThatDivideTheirParameters) {
  const auto expected = two_learners_alone(kSteps, {.period = 4});
  for (const int stage : {1, 2, 3}) {
    run_ranks_ok(4, [&](ProcessGroup& group) {
      DeviceMesh mesh(borrowed(group), {{"learner", 2}, {"dp", 2}});
      auto net = make_net();
      optim::SGD optimizer(net->parameters(), {.lr = 0.1});
      auto model = fully_shard(net, mesh.group("dp"), optimizer, {.stage = stage});
      LowCommunication outer(mesh.group("learner"), mesh.group("dp"), net->parameters(),
                             {.period = 4, .optimizer = &optimizer});
      for (int step = 1; step <= kSteps; ++step) {
        optimizer.zero_grad();
        {
          const detail::ForwardPass pass(model.state(), 8);
          loss_of(net, mesh.rank("learner"), step).backward();
        }
        optimizer.step();
        outer.step();
      }
      expect_close(expected, net->parameters(), 1e-6);
    });
  }
}

TEST(LowCommunication, ContinuesWithTheSameBits) {
  run_ranks_ok(2, [](ProcessGroup& group) {
    const LowCommunicationOptions options{.period = 4};
    LearnerRank straight(group, 1, options), first(group, 1, options), second(group, 1, options);
    straight.train(kSteps);
    first.train(8);
    const auto saved = copies(first.net->parameters());
    const at::NoGradGuard no_grad;
    for (std::size_t i = 0; i < saved.size(); ++i) second.net->parameters()[i].copy_(saved[i]);
    second.outer.anchor().copy_(first.outer.anchor());
    second.outer.momentum().copy_(first.outer.momentum());
    second.outer.set_state(first.outer.state());
    const at::AutoGradMode with_grad(true);
    for (int step = 9; step <= kSteps; ++step) second.step(step, group.rank());
    expect_equal(copies(straight.net->parameters()), copies(second.net->parameters()));
    LowCommunication other(second.mesh.group("learner"), second.mesh.group("dp"),
                           second.net->parameters(), {.period = 5});
    expect_error(ErrorCode::kInvalid, {"period"}, [&] { other.set_state(first.outer.state()); });
  });
}

TEST(LowCommunication, RefusesOptionsThatDoNotFit) {
  run_ranks_ok(1, [](ProcessGroup& group) {
    const auto make = [&](const LowCommunicationOptions& options) {
      LowCommunication outer(borrowed(group), borrowed(group), {at::zeros({4})}, options);
    };
    expect_error(ErrorCode::kInvalid, {"period 2 and fragments 3"},
                 [&] { make({.period = 2, .fragments = 3}); });
    expect_error(ErrorCode::kInvalid, {"delay 5 must be at least 0 and below period / fragments"},
                 [&] { make({.period = 20, .fragments = 4, .delay = 5}); });
    expect_error(ErrorCode::kInvalid, {"outer_momentum 1"}, [&] { make({.outer_momentum = 1}); });
    expect_error(ErrorCode::kInvalid, {"there are no parameters"},
                 [&] { LowCommunication(borrowed(group), borrowed(group), {}, {}); });
    expect_error(ErrorCode::kInvalid, {"must be a dense floating-point tensor"}, [&] {
      LowCommunication(borrowed(group), borrowed(group), {at::zeros({2}, at::kLong)}, {});
    });
  });
}

}  // namespace
}  // namespace paceline::low_communication_tests
