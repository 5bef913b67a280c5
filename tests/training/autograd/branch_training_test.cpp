// Training with branches on several ranks: the replicas stay equal and match one process.

#include <optional>

#include <gtest/gtest.h>

#include <torch/torch.h>

#include "paceline/engine/collectives/group/device_mesh.h"
#include "paceline/training/autograd/parallel_branches.h"
#include "paceline/training/parallel/distributed_data_parallel.h"
#include "paceline/training/tensor/collectives.h"

#include "tests/harness/thread_ranks.h"

namespace paceline {
namespace {

using harness::run_ranks_ok;

GroupPtr with_no_owner(ProcessGroup& group) {
  return {&group, [](ProcessGroup*) {}};
}

// Two branches between two layers; one branch has a norm. Without a group everything runs on one
// rank.
struct ForkedNetImpl : torch::nn::Module {
  explicit ForkedNetImpl(GroupPtr of = nullptr) : group(std::move(of)) {
    register_module("first", first);
    register_module("left", left);
    register_module("right", right);
    register_module("last", last);
    if (group != nullptr) {
      branches.emplace(group, std::vector{make_branch("left", left), make_branch("right", right)},
                       std::vector<int>{0, group->world_size() - 1});
    }
    double phase = 0;
    const at::NoGradGuard no_gradients;
    to(at::kDouble);
    for (auto& parameter : parameters()) {
      const auto values = (at::arange(parameter.numel(), at::kDouble) * 0.9 + ++phase).sin();
      parameter.copy_(values.reshape(parameter.sizes()) * 0.5);
    }
  }
  at::Tensor forward(const at::Tensor& input) {
    const auto x = at::tanh(first(input));
    const auto results = group == nullptr ? std::vector{left->forward(x), right->forward(x)}
                                          : branches->forward({x});
    return last(at::cat(results, 1));
  }

  const GroupPtr group;
  torch::nn::Linear first{4, 6}, last{8, 1};
  torch::nn::Sequential left =
      torch::nn::Sequential(torch::nn::Linear(6, 5), torch::nn::BatchNorm1d(5), torch::nn::Tanh());
  torch::nn::Sequential right = torch::nn::Sequential(torch::nn::Linear(6, 3));
  std::optional<ParallelBranches> branches;
};
TORCH_MODULE(ForkedNet);

at::Tensor batch_of(int step, int part, int rows) {
  return (at::arange(rows * 4, at::kDouble) * 0.3 + 10 * step + part).cos().reshape({rows, 4});
}

template <class Model>
at::Tensor loss_on(Model& model, const at::Tensor& batch) {
  return (model->forward(batch) - batch.sum(1, true)).pow(2).mean();
}

void expect_equal_on_all(ProcessGroup& group, const std::vector<at::Tensor>& tensors) {
  for (const auto& tensor : tensors) {
    for (const auto& other : all_gather(group, tensor.detach()))
      EXPECT_TRUE(at::equal(other, tensor));
  }
}

TEST(BranchTraining, replicas_stay_equal_with_the_bits_of_one_process) {
  for (int world_size = 1; world_size <= 3; ++world_size) {
    run_ranks_ok(world_size, [](ProcessGroup& own) {
      ForkedNet one, model(with_no_owner(own));
      const torch::optim::SGDOptions options = torch::optim::SGDOptions(0.05).momentum(0.9);
      torch::optim::SGD of_one(one->parameters(), options), of_model(model->parameters(), options);
      for (int step = 0; step < 5; ++step) {
        of_one.zero_grad();
        of_model.zero_grad();
        loss_on(one, batch_of(step, 0, 8)).backward();
        loss_on(model, batch_of(step, 0, 8)).backward();
        model->branches->share_gradients();
        of_one.step();
        of_model.step();
      }
      expect_equal_on_all(own, model->parameters());
      for (std::size_t i = 0; i < one->parameters().size(); ++i)
        EXPECT_TRUE(at::equal(one->parameters()[i], model->parameters()[i])) << i;
    });
  }
}

// Each optimizer updates only the branches of its rank; copies on other ranks are outdated until
// they are shared.
TEST(BranchTraining, only_the_owner_may_update_a_branch) {
  run_ranks_ok(2, [](ProcessGroup& own) {
    ForkedNet one, model(with_no_owner(own));
    auto updated = model->first->parameters();
    for (const auto& part :
         {model->last->parameters(),
          own.rank() == 0 ? model->left->parameters() : model->right->parameters()})
      updated.insert(updated.end(), part.begin(), part.end());
    torch::optim::SGD of_one(one->parameters(), 0.05), of_model(updated, 0.05);
    for (int step = 0; step < 3; ++step) {
      of_one.zero_grad();
      of_model.zero_grad();
      loss_on(one, batch_of(step, 0, 8)).backward();
      loss_on(model, batch_of(step, 0, 8)).backward();
      of_one.step();
      of_model.step();
    }
    model->branches->share_parameters();
    for (std::size_t i = 0; i < one->parameters().size(); ++i)
      EXPECT_TRUE(at::equal(one->parameters()[i], model->parameters()[i])) << i;
    for (std::size_t i = 0; i < one->buffers().size(); ++i)
      EXPECT_TRUE(at::equal(one->buffers()[i], model->buffers()[i])) << i;
  });
}

// The ranks along dp own the same branches, so their gradients are averaged as usual.
TEST(BranchTraining, data_parallel_replicas_of_branches_stay_equal) {
  run_ranks_ok(4, [](ProcessGroup& own) {
    DeviceMesh mesh(with_no_owner(own), {{"dp", 2}, {"branches", 2}});
    ForkedNet one, model(mesh.group("branches"));
    DistributedDataParallel replicas(model.ptr(), mesh.group("dp"));
    torch::optim::SGD of_one(one->parameters(), 0.05), of_model(model->parameters(), 0.05);
    one->eval();  // each replica's batch norm would see only half of the batch
    model->eval();
    for (int step = 0; step < 3; ++step) {
      of_one.zero_grad();
      of_model.zero_grad();
      const auto batches = {batch_of(step, 0, 4), batch_of(step, 1, 4)};
      for (const auto& batch : batches) (loss_on(one, batch) / 2).backward();
      const auto& batch = batches.begin()[mesh.rank("dp")];
      loss_on(replicas, batch).backward();
      model->branches->share_gradients();
      of_one.step();
      of_model.step();
    }
    expect_equal_on_all(own, model->parameters());
    for (std::size_t i = 0; i < one->parameters().size(); ++i)
      EXPECT_TRUE(at::allclose(one->parameters()[i], model->parameters()[i], 1e-12, 1e-12)) << i;
  });
}

}  // namespace
}  // namespace paceline
