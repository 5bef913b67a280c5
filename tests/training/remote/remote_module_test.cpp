// Training through remote modules is bitwise equal to training in one process; the forms that a
// module may have; errors.

#include <atomic>
#include <functional>
#include <iterator>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "tests/training/remote/training.h"

namespace paceline::remote::testing_training {
namespace {

class RemoteModules : public Training {};

// The same training in one process.
struct Alone {
  std::vector<at::Tensor> losses;
  State first, second;
};
constexpr int kSteps = 5;

template <class Options>
Alone train_alone(const Options& options) {
  auto first = mlp(1, 6, 8, 5), second = mlp(2, 5, 7, 3);
  auto parameters = first->parameters();
  for (const auto& parameter : second->parameters()) parameters.push_back(parameter);
  const auto optimizer = options.make(parameters);
  Alone alone;
  for (int step = 0; step < kSteps; ++step) {
    optimizer->zero_grad();
    const auto loss = torch::mse_loss(second->forward(first->forward(batch(step, 4, 6))),
                                      batch(100 + step, 4, 3));
    loss.backward();
    optimizer->step();
    alone.losses.push_back(loss.detach());
  }
  alone.first = state_of(*first);
  alone.second = state_of(*second);
  return alone;
}

enum class Cut { kFirstLocal, kBothRemote, kOneOwner, kOwnWorker };

class RemoteTraining : public Training {
 protected:
  template <class Options>
  void expect_the_bits_of_one_process(const Options& options) {
    const Alone alone = train_alone(options);
    for (const Cut cut : {Cut::kFirstLocal, Cut::kBothRemote, Cut::kOneOwner, Cut::kOwnWorker}) {
      SCOPED_TRACE(std::string(Options::kName) + ", cut " + std::to_string(static_cast<int>(cut)));
      auto first = mlp(1, 6, 8, 5), second = mlp(2, 5, 7, 3);
      Workers& trainer = cut == Cut::kOwnWorker ? *owner_ : *trainer_;
      const auto far = cut == Cut::kOwnWorker ? share(*owner_, second) : lend(second);
      std::optional<RemoteModule> near;
      if (cut == Cut::kBothRemote) near = lend(*third_, first, trainer);
      if (cut == Cut::kOneOwner) near = lend(*owner_, first, trainer);
      std::vector<RemoteModule> modules = {far};
      if (near) modules.push_back(*near);
      DistributedOptimizer optimizer(trainer, modules, options,
                                     near ? std::vector<at::Tensor>() : first->parameters());
      for (int step = 0; step < kSteps; ++step) {
        const at::Tensor input = batch(step, 4, 6);
        const auto middle = near ? (*near)->forward(input) : first->forward(input);
        const auto loss = torch::mse_loss(far->forward(middle), batch(100 + step, 4, 3));
        loss.backward();
        optimizer.step(loss);
        expect_equal(alone.losses[static_cast<std::size_t>(step)], loss.detach());
      }
      expect_equal(alone.first, near ? state_of(*near) : state_of(*first));
      expect_equal(alone.second, state_of(far));
      for (const auto& parameter : second->parameters()) EXPECT_FALSE(parameter.grad().defined());
    }
  }
};

TEST_F(RemoteTraining, sgd) {
  expect_the_bits_of_one_process(
      SGD{.lr = 0.1, .momentum = 0.9, .weight_decay = 1e-3, .nesterov = true});
}
TEST_F(RemoteTraining, adam) { expect_the_bits_of_one_process(Adam{.lr = 0.02, .amsgrad = true}); }
TEST_F(RemoteTraining, adamw) { expect_the_bits_of_one_process(AdamW{.lr = 0.02}); }
TEST_F(RemoteTraining, adagrad) { expect_the_bits_of_one_process(Adagrad{.lr = 0.05}); }
TEST_F(RemoteTraining, rmsprop) {
  expect_the_bits_of_one_process(RMSprop{.lr = 0.01, .momentum = 0.5, .centered = true});
}

// ---- forms of modules ----

// Two inputs, one of them without a gradient; a tuple as output; a parameter that may be unused.
struct MixImpl : torch::nn::Module {
  MixImpl() {
    torch::manual_seed(7);
    table = register_module("table", torch::nn::Embedding(10, 4));
    linear = register_module("linear", torch::nn::Linear(4, 4));
    unused = register_parameter("unused", torch::ones({3}));
    count = register_buffer("count", torch::zeros({1}));
  }
  std::tuple<at::Tensor, std::vector<at::Tensor>> forward(const at::Tensor& ids,
                                                          const at::Tensor& values) {
    count += 1;
    const at::Tensor sum = linear->forward(table->forward(ids) + values);
    return {sum, {sum.detach() * 2, ids + 1, at::Tensor(), torch::tanh(sum)}};
  }
  torch::nn::Embedding table{nullptr};
  torch::nn::Linear linear{nullptr};
  at::Tensor unused, count;
};
TORCH_MODULE(Mix);

TEST_F(RemoteModules, several_inputs_and_outputs_of_all_kinds) {
  const at::Tensor ids = torch::tensor({1, 5, 5});
  const auto run = [&](const std::function<Tensors(const Tensors&)>& forward) {
    const at::Tensor values = batch(3, 3, 4).requires_grad_();
    const Tensors outputs = forward({ids, values});
    EXPECT_EQ(outputs.size(), 5U);
    EXPECT_TRUE(outputs[0].requires_grad());
    EXPECT_FALSE(outputs[1].requires_grad());
    EXPECT_FALSE(outputs[2].requires_grad());
    EXPECT_FALSE(outputs[3].defined());
    // outputs[0] remains unused.
    const at::Tensor loss = (outputs[4] * outputs[1]).sum() + outputs[2].sum();
    loss.backward();
    return std::pair(loss, values.grad());
  };
  Mix alone, shared;
  torch::optim::SGD optimizer(alone->parameters(), 0.1);
  const auto [loss, gradient] =
      run([&](const Tensors& inputs) { return call_forward(*alone, inputs); });
  optimizer.step();
  const auto remote = lend(shared);
  DistributedOptimizer distributed(*trainer_, {remote}, SGD{.lr = 0.1});
  const auto [same_loss, same_gradient] =
      run([&](const Tensors& inputs) { return remote->forward_all(inputs); });
  distributed.step(same_loss);
  expect_equal(loss.detach(), same_loss.detach());
  expect_equal(gradient, same_gradient);
  expect_equal(state_of(*alone), state_of(remote));
  EXPECT_EQ(shared->count.item<float>(), 1);
}

TEST_F(RemoteModules, forward_takes_one_to_four_tensors_or_a_list) {
  struct One : torch::nn::Module {
    at::Tensor forward(at::Tensor a) { return a; }
  };
  struct Four : torch::nn::Module {
    Tensors forward(const at::Tensor& a, const at::Tensor& b, const at::Tensor& c, at::Tensor d) {
      return {a + b + c + d};
    }
    at::Tensor forward(const at::Tensor& a, const at::Tensor& b, const at::Tensor& c) {
      return a + b + c;
    }
  };
  struct List : torch::nn::Module {
    std::tuple<Tensors> forward(const Tensors& all) { return {{all.front(), all.back()}}; }
  };
  const at::Tensor one = torch::ones({2});
  const auto of_one = lend(std::make_shared<One>()), of_four = lend(std::make_shared<Four>());
  const auto of_list = lend(std::make_shared<List>());
  expect_equal(one, of_one->forward(one));
  expect_equal(one * 4, of_four->forward_all({one, one, one, one})[0]);
  expect_equal(one * 3, of_four->forward_all({one, one, one})[0]);
  EXPECT_EQ(of_list->forward_all({one, one, one, one, one}).size(), 2U);
  EXPECT_EQ(of_list->forward_all({one}).size(), 2U);
  expect_call_error(rpc::CallError::Executed::kYes,
                    {"worker owner", "One", "does not take 2 tensors"}, [&] {
                      of_one->forward_all({one, one});
                    });
  expect_error(ErrorCode::kInvalid, {"owner", "returned 2 tensors", "forward_all"},
               [&] { of_list->forward(one); });
}

TEST_F(RemoteModules, mode_buffers_and_state_are_the_owner_s) {
  const auto make = [] {
    torch::manual_seed(5);
    return Sequential(torch::nn::Linear(4, 4), torch::nn::BatchNorm1d(4), torch::nn::Dropout(0.5));
  };
  auto alone = make(), shared = make();
  const auto remote = lend(shared);
  Sequential parent(remote);  // it passes on its mode to its modules
  for (const bool trains : {true, false, false, true}) {
    SCOPED_TRACE(trains);
    alone->train(trains);
    parent->train(trains);
    const at::Tensor input = batch(9, 6, 4);
    torch::manual_seed(50);
    const at::Tensor expected = alone->forward(input);
    torch::manual_seed(50);
    expect_equal(expected.detach(), parent->forward(input).detach());
    EXPECT_EQ(shared->is_training(), trains);
    expect_equal(state_of(*alone), state_of(remote));
  }
  auto state = remote->state();
  for (auto& [name, value] : state) value = torch::zeros_like(value);
  state.erase(std::next(state.begin(), 2), state.end());
  remote->load_state(state);
  EXPECT_EQ(shared->parameters()[0].abs().sum().item<float>(), 0);
  expect_call_error(rpc::CallError::Executed::kYes, {"no tensor named 'head.weight'"}, [&] {
    remote->load_state({{"head.weight", torch::zeros({1})}});
  });
  expect_call_error(rpc::CallError::Executed::kYes, {"'0.weight' has other sizes"}, [&] {
    remote->load_state({{"0.weight", torch::zeros({1})}});
  });
}

TEST_F(RemoteModules, no_pass_is_kept_where_no_gradient_is_wanted) {
  auto shared = mlp(1, 4, 4, 2);
  const auto remote = lend(shared);
  const at::Tensor input = batch(1, 3, 4);
  {
    const torch::NoGradGuard no_grad;
    EXPECT_FALSE(remote->forward(input).requires_grad());
  }
  EXPECT_EQ(num_kept_passes(), 0U);
  for (auto& parameter : shared->parameters()) parameter.requires_grad_(false);
  EXPECT_FALSE(remote->forward(input).requires_grad());
  EXPECT_EQ(num_kept_passes(), 0U);
  // Gradients pass through frozen weights.
  const at::Tensor leaf = batch(1, 3, 4).requires_grad_();
  const at::Tensor output = remote->forward(leaf);
  EXPECT_EQ(num_kept_passes(), 1U);
  output.sum().backward();
  EXPECT_TRUE(leaf.grad().defined());
  expect_call_error(rpc::CallError::Executed::kNo, {"no parameter", "requires a gradient"},
                    [&] { DistributedOptimizer(*trainer_, {remote}, SGD{.lr = 0.1}); });
}

// A type that other workers may create.
struct Tail {
  static constexpr std::string_view kName = "tail";
  struct Arguments {
    int width = 1;
    static auto fields(auto& m) { return std::tie(m.width); }
  };
  static torch::nn::Linear make(const Arguments& arguments) {
    if (arguments.width < 0) throw std::runtime_error("a width of -1");
    return torch::nn::Linear(arguments.width, 1);
  }
};

TEST_F(RemoteModules, others_create_modules_of_types_that_a_worker_serves) {
  serve<Tail>(*owner_);
  const auto tail = create<Tail>(*trainer_, "owner", {.width = 3});
  EXPECT_EQ(tail->owner(), "owner");
  EXPECT_EQ(tail->forward(batch(1, 2, 3)).sizes(), at::IntArrayRef({2, 1}));
  expect_call_error(rpc::CallError::Executed::kYes, {"a width of -1"},
                    [&] { create<Tail>(*trainer_, "owner", {.width = -1}); });
  expect_call_error(rpc::CallError::Executed::kNo, {"third", "has no handler"},
                    [&] { create<Tail>(*trainer_, "third"); });
  // Another worker can only get a reference.
  const auto forged = trainer_->create<ServedModule>("owner");
  expect_error(ErrorCode::kInvalid, {"only the worker that has a module can share it"},
               [&] { forged.call<&ServedModule::ready>().get(); });
}

// ---- errors ----

struct FailsImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& input) {
    if (input.size(0) == 2) throw std::runtime_error("two rows are too few");
    return input.view({3, -1});
  }
};
TORCH_MODULE(Fails);

TEST_F(RemoteModules, errors_of_forward_and_backward_say_where) {
  const auto remote = lend(Fails());
  const auto leaf = [](std::int64_t rows) { return torch::ones({rows, 4}).requires_grad_(); };
  expect_call_error(rpc::CallError::Executed::kYes,
                    {"paceline.module.forward", "owner", "two rows are too few"},
                    [&] { remote->forward(leaf(2)); });
  try {
    remote->forward(leaf(4));
    FAIL();
  } catch (const rpc::CallError& error) {
    EXPECT_THAT(error.what(), HasSubstr("shape '[3, -1]' is invalid"));
    // This text would be part of a backtrace.
    EXPECT_THAT(error.what(), testing::Not(HasSubstr("Exception raised from")));
  }
  EXPECT_EQ(num_kept_passes(), 0U);
  expect_error(ErrorCode::kInvalid, {"refers to nothing"},
               [&] { RemoteModule()->forward(leaf(3)); });
  expect_error(ErrorCode::kInvalid, {"RemoteModule refers to nothing"},
               [&] { DistributedOptimizer(*trainer_, {RemoteModule()}, SGD{}); });

  const at::Tensor input = leaf(3);
  const at::Tensor loss = remote->forward(input).square().sum();
  expect_error(ErrorCode::kUnsupported, {"owner", "no gradients of gradients"}, [&] {
    torch::autograd::grad({loss}, {input}, {}, /*retain_graph=*/true, /*create_graph=*/true);
  });
  // A tensor that cannot be sent.
  expect_error(ErrorCode::kUnsupported, {"on device meta"},
               [&] { remote->forward(torch::empty({2}, at::TensorOptions(at::kMeta))); });
}

TEST_F(RemoteModules, a_second_backward_needs_a_graph_that_was_retained) {
  const auto remote = lend(mlp(1, 4, 4, 2));
  DistributedOptimizer optimizer(*trainer_, {remote}, SGD{.lr = 1});
  const at::Tensor input = batch(1, 3, 4).requires_grad_();
  const State before = state_of(remote);
  // The backward pass starts at the output itself, so that no other node throws first.
  const at::Tensor output = remote->forward(input);
  output.backward(torch::ones_like(output), /*retain_graph=*/true);
  const at::Tensor once = input.grad().clone();
  output.backward(torch::ones_like(output));
  expect_equal(once + once, input.grad());
  expect_error(ErrorCode::kInvalid, {"second backward", "owner", "retain_graph"},
               [&] { output.backward(torch::ones_like(output)); });
  // The gradients of both backward passes are added, as in one process.
  optimizer.step(output);
  auto alone = mlp(1, 4, 4, 2);
  for (int i = 0; i < 2; ++i) alone->forward(input).sum().backward();
  torch::optim::SGD(alone->parameters(), 1).step();
  expect_equal(state_of(*alone), state_of(remote));
}

TEST_F(RemoteModules, deadlines_count) {
  std::atomic<bool> may_end{false};
  struct SlowImpl : torch::nn::Module {
    explicit SlowImpl(std::atomic<bool>& may) : may_end(may) {}
    at::Tensor forward(const at::Tensor& input) {
      EXPECT_TRUE(soon([this] { return may_end.load(); }));
      return input * 2;
    }
    std::atomic<bool>& may_end;
  };
  const auto remote = lend(std::make_shared<SlowImpl>(may_end));
  remote->set_deadline(100ms);
  const at::Tensor leaf = torch::ones({2}).requires_grad_();
  expect_call_error(rpc::CallError::Executed::kUnknown, {"owner", "deadline"},
                    [&] { remote->forward(leaf); });
  may_end = true;
  remote->set_deadline(20s);
  expect_equal(leaf.detach() * 2, remote->forward(leaf).detach());
  // The pass of the abandoned call is not kept.
  EXPECT_TRUE(soon([] { return num_kept_passes() == 0; }));
}

}  // namespace
}  // namespace paceline::remote::testing_training
