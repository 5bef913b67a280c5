// Several passes at the same time, from one worker and from many; passes through modules that
// contain remote modules; passes that the owner drops.

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "paceline/training/remote/served_module.h"

#include "tests/training/remote/training.h"

namespace paceline::remote::testing_training {
namespace {

class Passes : public Training {};

TEST_F(Passes, each_trainer_s_step_applies_the_gradients_of_its_own_loss) {
  const auto other = job_.join("other");
  auto shared = mlp(1, 4, 6, 2), alone = mlp(1, 4, 6, 2);
  const auto remote = lend(shared);
  const auto remote_too = lend(*owner_, shared, *other);
  DistributedOptimizer optimizer(*trainer_, {remote}, SGD{.lr = 0.1, .momentum = 0.9});
  DistributedOptimizer optimizer_too(*other, {remote_too}, Adam{.lr = 0.01});
  torch::optim::SGD sgd(alone->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  torch::optim::Adam adam(alone->parameters(), torch::optim::AdamOptions(0.01));
  for (int step = 0; step < 4; ++step) {
    const at::Tensor input = batch(step, 3, 4), input_too = batch(50 + step, 5, 4);
    const auto loss = remote->forward(input).square().sum();
    const auto loss_too = remote_too->forward(input_too).abs().sum();
    const auto dropped = remote->forward(input).sum();  // neither optimizer steps with it
    dropped.backward();
    loss_too.backward();
    loss.backward();
    // The passes of earlier steps are no longer kept.
    EXPECT_TRUE(soon([] { return num_kept_passes() == 3; }));
    // In one process both gradients must be computed with the old weights.
    const auto parameters = alone->parameters();
    const auto first = torch::autograd::grad({alone->forward(input).square().sum()}, parameters);
    const auto second = torch::autograd::grad({alone->forward(input_too).abs().sum()}, parameters);
    const auto apply = [&](torch::optim::Optimizer& own, const Tensors& gradients) {
      for (std::size_t i = 0; i < gradients.size(); ++i) {
        auto parameter = parameters[i];
        parameter.mutable_grad() = gradients[i].clone();
      }
      own.step();
    };
    optimizer.step(loss);
    apply(sgd, first);
    expect_equal(state_of(*alone), state_of(remote));
    optimizer_too.step(loss_too);
    apply(adam, second);
    expect_equal(state_of(*alone), state_of(remote_too));
    // Applied gradients are cleared.
    expect_error(ErrorCode::kAborted, {"worker owner", "have been applied"},
                 [&] { optimizer.step(loss); });
  }
}

// y = w x. Its gradient is x for any weights, so that sums are exact.
struct ScaleImpl : torch::nn::Module {
  ScaleImpl() { weight = register_parameter("weight", torch::zeros({1})); }
  at::Tensor forward(const at::Tensor& input) { return weight * input; }
  at::Tensor weight;
};
TORCH_MODULE(Scale);

TEST_F(Passes, of_many_threads_and_workers_at_once_none_is_lost_or_applied_twice) {
  constexpr int kTrainers = 3, kThreads = 2, kRounds = 15;
  Scale shared;
  std::vector<std::unique_ptr<Workers>> workers;
  std::vector<std::thread> threads;
  std::atomic<std::int64_t> sum{0};
  for (int i = 0; i < kTrainers; ++i) {
    workers.push_back(job_.join("trainer" + std::to_string(i)));
    const auto remote = lend(*owner_, shared, *workers.back());
    for (int j = 0; j < kThreads; ++j) {
      threads.emplace_back([&, remote, seed = kThreads * i + j, worker = workers.back().get()] {
        DistributedOptimizer optimizer(*worker, {remote}, SGD{.lr = 1});
        for (int round = 0; round < kRounds; ++round) {
          const int value = 1 + (7 * seed + 3 * round) % 11;
          std::vector<at::Tensor> losses;
          for (int k = 0; k < 2; ++k) {
            losses.push_back(remote->forward(torch::full({1}, value)).sum());
            losses.back().backward();
          }
          optimizer.step(losses);
          sum += 2 * value;
        }
      });
    }
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(shared->weight.item<float>(), -static_cast<float>(sum));
}

TEST_F(Passes, micro_batches_are_one_step_in_the_order_of_their_losses) {
  auto alone = mlp(1, 4, 6, 2);
  const auto remote = lend(mlp(1, 4, 6, 2));
  DistributedOptimizer optimizer(*trainer_, {remote}, SGD{.lr = 0.1});
  torch::optim::SGD sgd(alone->parameters(), 0.1);
  std::vector<RemoteModuleImpl::RunningForward> running;
  std::vector<at::Tensor> losses;
  for (int i = 0; i < 4; ++i) {
    alone->forward(batch(i, 3, 4)).square().sum().backward();
    running.push_back(remote->start({batch(i, 3, 4)}));
  }
  for (auto& forward : running) losses.push_back(forward.get()[0].square().sum());
  // The result does not depend on the order of the backward passes.
  std::vector<std::thread> threads;
  for (const auto& loss : {losses[2], losses[0], losses[3], losses[1]}) {
    threads.emplace_back([loss] { loss.backward(); });
  }
  for (auto& thread : threads) thread.join();
  sgd.step();
  optimizer.step(losses);
  expect_equal(state_of(*alone), state_of(remote));
}

TEST_F(Passes, a_module_may_be_used_often_in_one_graph) {
  auto alone = mlp(1, 4, 6, 4);
  const auto remote = lend(mlp(1, 4, 6, 4));
  DistributedOptimizer optimizer(*trainer_, {remote}, SGD{.lr = 0.1});
  torch::optim::SGD sgd(alone->parameters(), 0.1);
  const auto unroll = [](const std::function<at::Tensor(const at::Tensor&)>& step) {
    at::Tensor state = torch::zeros({2, 4}), loss = torch::zeros({});
    for (int i = 0; i < 5; ++i) {
      state = torch::tanh(step(state + batch(i, 2, 4)));
      loss = loss + state.square().mean();
    }
    loss.backward();
    return loss;
  };
  for (int i = 0; i < 3; ++i) {
    sgd.zero_grad();
    const at::Tensor expected = unroll([&](const at::Tensor& x) { return alone->forward(x); });
    sgd.step();
    const at::Tensor loss = unroll([&](const at::Tensor& x) { return remote->forward(x); });
    optimizer.step(loss);
    expect_equal(expected.detach(), loss.detach());
  }
  expect_equal(state_of(*alone), state_of(remote));
}

TEST_F(Passes, a_backward_for_some_tensors_runs_what_leads_to_them) {
  auto alone = mlp(1, 4, 6, 2);
  const auto remote = lend(mlp(1, 4, 6, 2));
  const at::Tensor input = batch(1, 3, 4).requires_grad_();
  const auto expected = torch::autograd::grad({alone->forward(input).square().sum()}, {input});
  const auto got = torch::autograd::grad({remote->forward(input).square().sum()}, {input});
  expect_equal(expected[0], got[0]);
  EXPECT_FALSE(input.grad().defined());
}

// ---- references in messages ----

// Trains a module of one worker on another worker, at the request of a third.
struct TrainThis {
  static constexpr std::string_view kName = "train_this";
  struct Request {
    RemoteModule module;
    at::Tensor input;
    int steps = 0;
    static auto fields(auto& m) { return std::tie(m.module, m.input, m.steps); }
  };
  struct Reply {
    at::Tensor loss;
    RemoteModule module;
    static auto fields(auto& m) { return std::tie(m.loss, m.module); }
  };
};

TEST_F(Passes, a_module_is_passed_on_and_trained_by_a_third_worker) {
  third_->serve<TrainThis>([this](const TrainThis::Request& request, rpc::Context&) {
    if (request.steps == 0) return TrainThis::Reply{{}, request.module};
    DistributedOptimizer optimizer(*third_, {request.module}, SGD{.lr = 0.1});
    at::Tensor loss;
    for (int i = 0; i < request.steps; ++i) {
      loss = request.module->forward(request.input).square().sum();
      loss.backward();
      optimizer.step(loss);
    }
    return TrainThis::Reply{loss, request.module};
  });
  auto alone = mlp(1, 4, 6, 2);
  torch::optim::SGD sgd(alone->parameters(), 0.1);
  at::Tensor expected;
  for (int i = 0; i < 3; ++i) {
    sgd.zero_grad();
    expected = alone->forward(batch(1, 3, 4)).square().sum();
    expected.backward();
    sgd.step();
  }
  // The sender drops its reference at once.
  auto reply = trainer_->call<TrainThis>("third", {lend(mlp(1, 4, 6, 2)), batch(1, 3, 4), 3}).get();
  expect_equal(expected.detach(), reply.loss);
  expect_equal(state_of(*alone), state_of(reply.module));
  // An empty reference arrives as one.
  EXPECT_FALSE(
      trainer_->call<TrainThis>("third", {RemoteModule(nullptr), {}, 0}).get().module->reference());
}

// ---- modules within modules ----

// A layer, then `inner` (local or remote), then a layer.
template <class Inner>
struct AroundImpl : torch::nn::Module {
  AroundImpl(std::uint64_t seed, const Inner& inside) {
    first = register_module("first", mlp(seed, 4, 5, 4));
    inner = register_module("inner", inside);
    last = register_module("last", mlp(100 + seed, 4, 5, 4));
  }
  at::Tensor forward(const at::Tensor& input) {
    return last->forward(torch::tanh(inner->forward(first->forward(input))));
  }
  Sequential first{nullptr}, last{nullptr};
  Inner inner{nullptr};
};
template <class Inner>
auto around(std::uint64_t seed, const Inner& inner) {
  return std::make_shared<AroundImpl<Inner>>(seed, inner);
}
using Holder = torch::nn::ModuleHolder<AroundImpl<Sequential>>;

TEST_F(Passes, nested_modules_pass_gradients_on_and_their_owners_step_too) {
  auto alone = around(1, mlp(2, 4, 3, 4));
  auto inner_here = mlp(2, 4, 3, 4);
  const auto of_owner = lend(*third_, inner_here, *owner_);
  auto outer_here = around(1, of_owner);
  const auto outer = lend(outer_here);
  const auto inner = lend(*third_, inner_here, *trainer_);
  DistributedOptimizer optimizer(*trainer_, {outer, inner}, SGD{.lr = 0.1, .momentum = 0.5});
  torch::optim::SGD sgd(alone->parameters(), torch::optim::SGDOptions(0.1).momentum(0.5));
  for (int step = 0; step < 3; ++step) {
    sgd.zero_grad();
    // The outer and the inner module are used twice, and the trainer uses the inner one as well.
    const auto run = [&](auto whole, auto part) {
      const at::Tensor input = batch(step, 3, 4);
      const auto loss =
          part->forward(whole->forward(torch::tanh(whole->forward(input)))).square().sum();
      loss.backward();
      return loss;
    };
    const at::Tensor expected = run(alone, alone->inner);
    sgd.step();
    const at::Tensor loss = run(outer, inner);
    optimizer.step(loss);
    expect_equal(expected.detach(), loss.detach());
  }
  expect_equal(state_of(*alone->first), state_of(*outer_here->first));
  expect_equal(state_of(*alone->last), state_of(*outer_here->last));
  expect_equal(state_of(*alone->inner), state_of(inner));
  outer->eval();
  outer->forward(batch(1, 3, 4));
  EXPECT_FALSE(inner_here->is_training());  // the outer module passes on its mode
}

TEST_F(Passes, a_nested_module_without_inputs_that_require_gradients_is_trained) {
  // The outer module has no weights: its backward pass only leads to the nested ones.
  struct FirstImpl : torch::nn::Module {
    explicit FirstImpl(const RemoteModule& of) : inner(register_module("inner", of)) {}
    at::Tensor forward(const at::Tensor& input) { return inner->forward(input).square(); }
    RemoteModule inner;
  };
  Scale scale;
  const auto outer = lend(std::make_shared<FirstImpl>(lend(*third_, scale, *owner_)));
  const auto inner = lend(*third_, scale, *trainer_);
  inner->load_state({{"weight", torch::full({1}, 3)}});
  DistributedOptimizer optimizer(*trainer_, {inner}, SGD{.lr = 1});
  const auto loss = outer->forward(torch::full({1}, 2)).sum();  // (2 w)^2
  loss.backward();
  optimizer.step(loss);
  EXPECT_EQ(scale->weight.item<float>(), 3 - 2 * 2 * 2 * 3);
}

TEST_F(Passes, workers_that_call_each_other_in_backward_do_not_wait_in_a_circle) {
  // A module of "owner" contains one of "third", which contains one of "owner"; and vice versa.
  const auto core = [&](Workers& owner, Workers& to, std::uint64_t seed) {
    return lend(owner, mlp(seed, 4, 3, 4), to);
  };
  const auto at_third = lend(*third_, around(2, core(*owner_, *third_, 3)), *owner_);
  const auto at_owner = lend(*owner_, around(5, core(*third_, *owner_, 6)), *third_);
  const auto first = lend(*owner_, around(1, at_third), *trainer_);
  const auto second = lend(*third_, around(4, at_owner), *trainer_);
  auto alone_first = around(1, Holder(around(2, mlp(3, 4, 3, 4))));
  auto alone_second = around(4, Holder(around(5, mlp(6, 4, 3, 4))));
  std::vector<std::thread> threads;
  for (int i = 0; i < 6; ++i) {
    threads.emplace_back([&, i] {
      const at::Tensor input = [&] {
        static std::mutex mutex;  // guards the seed
        const std::lock_guard lock(mutex);
        return batch(i, 2, 4);
      }();
      const at::Tensor leaf = input.clone().requires_grad_(), own = input.clone().requires_grad_();
      const bool is_first = i % 2 == 0;
      (is_first ? first : second)->forward(leaf).sum().backward();
      const auto expected = is_first ? alone_first->forward(own) : alone_second->forward(own);
      const auto gradient = torch::autograd::grad({expected.sum()}, {own});
      expect_equal(gradient[0], leaf.grad());
    });
  }
  for (auto& thread : threads) thread.join();
}

// ---- steps in parallel with passes ----

TEST(WeightsOfPasses, a_step_waits_for_passes_that_compute_but_not_for_those_that_wait) {
  WeightsLock lock;
  const WeightsInUse in_use(lock, Deadline::never());
  EXPECT_FALSE(lock.begin_step(Deadline::after(20ms)));
  {
    const WeightsLent lent;
    ASSERT_TRUE(lock.begin_step(Deadline::after(20s)));
    EXPECT_FALSE(lock.begin_pass(Deadline::after(20ms)));
    EXPECT_FALSE(lock.begin_step(Deadline::after(20ms)));
    lock.end_step();
  }
  EXPECT_FALSE(lock.begin_step(Deadline::after(20ms)));
}

TEST(WeightsOfPasses, a_step_that_waits_goes_before_passes_that_come_later) {
  WeightsLock lock;
  auto in_use = std::make_unique<WeightsInUse>(lock, Deadline::never());
  std::thread step([&] {
    EXPECT_TRUE(lock.begin_step(Deadline::after(20s)));
    lock.end_step();
  });
  EXPECT_TRUE(soon([&] {
    if (!lock.begin_pass(Deadline::after(1ms))) return true;
    lock.end_pass();
    return false;
  }));
  in_use.reset();
  step.join();
  EXPECT_TRUE(lock.begin_pass(Deadline::after(20s)));
  lock.end_pass();
}

// ---- ends ----

TEST_F(Passes, the_owner_lets_go_of_a_pass_with_the_graph) {
  const auto outer = lend(around(1, lend(*third_, mlp(2, 4, 3, 4), *owner_)));
  at::Tensor output = outer->forward(batch(1, 3, 4));
  EXPECT_EQ(num_kept_passes(), 2U);
  at::Tensor more = output.square().sum();
  output = at::Tensor();
  std::this_thread::sleep_for(300ms);  // nothing may be released in this time
  EXPECT_EQ(num_kept_passes(), 2U);
  more = at::Tensor();
  EXPECT_TRUE(soon([] { return num_kept_passes() == 0; }));
  // The result of this forward pass is never fetched.
  (void)outer->start({batch(1, 3, 4)});
  EXPECT_TRUE(soon([] { return num_kept_passes() == 0; }));
}

TEST_F(Passes, an_owner_that_has_left_is_an_error_of_the_backward_pass) {
  const auto remote = lend(mlp(1, 4, 4, 2));
  const auto outer = lend(*third_, around(1, lend(*owner_, mlp(2, 4, 3, 4), *third_)), *trainer_);
  const at::Tensor leaf = batch(1, 3, 4).requires_grad_();
  const at::Tensor loss = remote->forward(leaf).sum(), nested = outer->forward(leaf).sum();
  owner_->leave();
  try {
    loss.backward();
    FAIL();
  } catch (const rpc::CallError& error) {  // the outcome is unknown if the call was being sent
    EXPECT_NE(static_cast<int>(error.executed()), static_cast<int>(rpc::CallError::Executed::kYes));
    EXPECT_STREQ(to_string(error.code()), to_string(ErrorCode::kPeerLost));
    EXPECT_THAT(error.what(), HasSubstr("paceline.pass.backward"));
    EXPECT_EQ(error.worker(), "owner");
  }
  // The third worker's backward pass failed because the owner's failed.
  expect_call_error(rpc::CallError::Executed::kYes,
                    {"paceline.pass.backward of worker third", "owner"},
                    [&] { nested.backward(); });
  EXPECT_FALSE(leaf.grad().defined());
}

}  // namespace
}  // namespace paceline::remote::testing_training
