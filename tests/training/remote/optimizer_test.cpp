// The arguments of DistributedOptimizer, and the errors of a failed step.

#include <algorithm>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "tests/training/remote/training.h"

namespace paceline::remote::testing_training {
namespace {

class Optimizers : public Training {};

// A program's own optimizer, whose step() throws if the learning rate is above 100.
struct Rude {
  static constexpr std::string_view kName = "rude";
  double lr = 1;
  static auto fields(auto& m) { return std::tie(m.lr); }
  OptimizerPointer make(std::vector<at::Tensor> parameters) const;
};
struct RudeOptimizer : torch::optim::SGD {
  using SGD::SGD;
  at::Tensor step(LossClosure closure = nullptr) override {
    if (options_of_first().get_lr() > 100) throw std::runtime_error("that is too fast");
    return SGD::step(std::move(closure));
  }
  torch::optim::OptimizerOptions& options_of_first() { return param_groups()[0].options(); }
};
OptimizerPointer Rude::make(std::vector<at::Tensor> parameters) const {
  return std::make_unique<RudeOptimizer>(std::move(parameters), torch::optim::SGDOptions(lr));
}

TEST_F(Optimizers, a_program_s_own_optimizer_and_its_learning_rate) {
  auto alone = mlp(1, 4, 4, 2);
  const auto remote = lend(mlp(1, 4, 4, 2));
  expect_call_error(rpc::CallError::Executed::kNo,
                    {"paceline.optimizer.rude", "owner", "no handler"},
                    [&] { DistributedOptimizer(*trainer_, {remote}, Rude{}); });
  serve_optimizer<Rude>(*owner_);
  DistributedOptimizer optimizer(*trainer_, {remote}, Rude{.lr = 0.1});
  torch::optim::SGD sgd(alone->parameters(), 0.1);
  for (int step = 0; step < 4; ++step) {
    if (step == 2) {
      optimizer.set_learning_rate(0.01);
      sgd.param_groups()[0].options().set_lr(0.01);
    }
    sgd.zero_grad();
    alone->forward(batch(step, 3, 4)).square().sum().backward();
    sgd.step();
    const auto loss = remote->forward(batch(step, 3, 4)).square().sum();
    loss.backward();
    optimizer.step(loss);
  }
  expect_equal(state_of(*alone), state_of(remote));
}

TEST_F(Optimizers, what_owners_keep_of_their_own_is_not_touched) {
  auto shared = mlp(1, 4, 4, 2), other = mlp(2, 4, 4, 2);
  const at::Tensor own_gradient = torch::full({4, 4}, 7.0);
  shared->parameters()[0].mutable_grad() = own_gradient;
  const auto remote = lend(shared), untouched = lend(other);
  const State before = state_of(untouched);
  DistributedOptimizer optimizer(*trainer_, {remote}, SGD{.lr = 0.1});
  const auto loss =
      untouched->forward(batch(1, 3, 4)).sum() + remote->forward(batch(2, 3, 4)).sum();
  loss.backward();
  optimizer.step(loss);
  expect_equal(before, state_of(untouched));
  expect_equal(own_gradient, shared->parameters()[0].grad());
  // The gradients of other modules are kept until their own optimizer steps.
  DistributedOptimizer second(*trainer_, {untouched}, SGD{.lr = 0.1});
  second.step(loss);
  EXPECT_FALSE(torch::equal(before.at("0.weight"), state_of(untouched).at("0.weight")));
}

TEST_F(Optimizers, a_step_between_another_s_forward_and_backward_is_seen_by_the_backward) {
  const auto remote = lend(mlp(1, 4, 4, 2));
  DistributedOptimizer optimizer(*trainer_, {remote}, SGD{.lr = 0.5});
  const at::Tensor leaf = batch(1, 3, 4).requires_grad_();
  const auto open = remote->forward(leaf).sum();
  const auto loss = remote->forward(batch(2, 3, 4)).square().sum();
  loss.backward();
  optimizer.step(loss);
  open.backward();
  auto alone = mlp(1, 4, 4, 2);
  alone->forward(batch(2, 3, 4)).square().sum().backward();
  torch::optim::SGD(alone->parameters(), 0.5).step();
  EXPECT_TRUE(leaf.grad().defined());
  expect_equal(state_of(*alone), state_of(remote));
}

TEST_F(Optimizers, without_gradients_there_is_no_step) {
  const auto remote = lend(mlp(1, 4, 4, 2));
  DistributedOptimizer optimizer(*trainer_, {remote}, SGD{.lr = 0.1});
  const State before = state_of(remote);
  const auto loss = remote->forward(batch(1, 3, 4)).sum();
  const std::vector<std::string> words = {"no gradients", "backward()"};
  expect_error(ErrorCode::kInvalid, words, [&] { optimizer.step(loss); });
  expect_error(ErrorCode::kInvalid, words, [&] { optimizer.step(torch::ones({})); });
  expect_error(ErrorCode::kInvalid, words, [&] { optimizer.step(std::vector<at::Tensor>()); });
  expect_error(ErrorCode::kInvalid, words, [&] { optimizer.step(at::Tensor()); });
  expect_equal(before, state_of(remote));
}

TEST_F(Optimizers, a_failed_step_says_which_owners_took_it) {
  serve_optimizer<Rude>(*owner_);
  serve_optimizer<Rude>(*third_);
  auto local = mlp(3, 2, 2, 2);
  const auto one = lend(mlp(1, 4, 4, 2));
  const auto two = lend(*third_, mlp(2, 4, 4, 2), *trainer_);
  DistributedOptimizer optimizer(*trainer_, {one, two}, Rude{.lr = 0.1}, local->parameters());
  const auto run = [&](const Tensors& outputs) {
    at::Tensor loss = torch::zeros({});
    for (const at::Tensor& output : outputs) loss = loss + local->forward(output).square().sum();
    loss.backward();
    return loss;
  };
  const auto expect_failure =
      [&](const at::Tensor& loss, const std::vector<std::string>& words,
          std::vector<std::pair<std::string, rpc::CallError::Executed>> expected) {
        const at::Tensor weight = local->parameters()[0].detach().clone();
        try {
          optimizer.step(loss);
          FAIL();
        } catch (const StepError& error) {
          for (const auto& word : words) EXPECT_THAT(error.what(), HasSubstr(word));
          std::vector<std::pair<std::string, rpc::CallError::Executed>> outcomes;
          for (const auto& [owner, executed, text] : error.outcomes()) {
            outcomes.emplace_back(owner, executed);
          }
          std::sort(outcomes.begin(), outcomes.end());
          EXPECT_EQ(outcomes, expected);
        }
        expect_equal(weight, local->parameters()[0].detach());  // local parameters are updated last
      };
  using enum rpc::CallError::Executed;
  const at::Tensor input = batch(1, 3, 4);
  optimizer.set_learning_rate(1000);
  expect_failure(run({one->forward(input)}), {"worker owner failed in the step", "too fast"},
                 {{"owner", kYes}});
  optimizer.set_learning_rate(0.1);
  const at::Tensor both = run({one->forward(input), two->forward(input)});
  third_->leave();
  EXPECT_THROW((void)two->state(), Error);  // the trainer has noticed by now that the worker left
  expect_failure(both, {"worker owner took the step", "worker third did not take the step"},
                 {{"owner", kYes}, {"third", kNo}});
  // A step of the other owner alone still works.
  optimizer.step(run({one->forward(input)}));
}

}  // namespace
}  // namespace paceline::remote::testing_training
