#include "paceline/training/parallel/data_parallel.h"

#include <atomic>
#include <functional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>

#include <torch/torch.h>

#include "paceline/engine/core/error.h"
#include "paceline/training/parallel/activation_checkpoint.h"

#include "tests/harness/says.h"

namespace paceline {
namespace {

using harness::Says;

struct TwoLayersImpl : torch::nn::Cloneable<TwoLayersImpl> {
  TwoLayersImpl() { TwoLayersImpl::reset(); }
  void reset() override {
    first = register_module("first", torch::nn::Linear(6, 16));
    norm = register_module("norm", torch::nn::BatchNorm1d(16));
    second = register_module("second", torch::nn::Linear(16, 3));
  }
  at::Tensor forward(const at::Tensor& input) {
    auto features = first(input);
    if (uses_norm) features = norm(features);
    return second(at::relu(features));
  }
  bool uses_norm = false;
  torch::nn::Linear first{nullptr}, second{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
};
TORCH_MODULE(TwoLayers);

TwoLayers make_layers(bool uses_norm = false) {
  torch::manual_seed(4);
  TwoLayers layers;
  layers->uses_norm = uses_norm;
  return layers;
}

at::Tensor batch(std::int64_t size, std::uint64_t seed = 1) {
  return at::randn({size, 6}, at::detail::createCPUGenerator(seed));
}

std::string error_of(const std::function<void()>& act) {
  try {
    act();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

TEST(DataParallel, equals_the_module_on_the_whole_batch) {
  for (int replicas = 1; replicas <= 5; ++replicas) {
    for (const std::int64_t samples : {0, 1, 3, 4, 7, 30}) {
      SCOPED_TRACE(std::to_string(replicas) + " replicas, " + std::to_string(samples));
      TwoLayers whole = make_layers(), parallel = make_layers();
      DataParallel<TwoLayersImpl> model(parallel, replicas);
      const auto wanted_input = batch(samples).requires_grad_();
      const auto input = batch(samples).requires_grad_();
      const auto wanted = whole(wanted_input);
      const auto output = model(input);
      ASSERT_EQ(output.sizes(), wanted.sizes());
      EXPECT_TRUE(at::allclose(output, wanted, 1e-5, 1e-6));
      for (int pass = 0; pass < 2; ++pass) {  // the second pass adds to the gradients
        wanted.square().sum().backward({}, pass == 0);
        output.square().sum().backward({}, pass == 0);
      }
      EXPECT_TRUE(at::allclose(input.grad(), wanted_input.grad(), 1e-4, 1e-5));
      for (std::size_t i = 0; i < whole->parameters().size(); ++i) {
        const auto gradient = model.parameters()[i].grad(), other = whole->parameters()[i].grad();
        ASSERT_EQ(gradient.defined(), other.defined()) << i;
        if (!other.defined()) continue;
        EXPECT_TRUE(at::allclose(gradient, other, 1e-4, 1e-5)) << i;
      }
    }
  }
}

struct ConvolutionImpl : torch::nn::Cloneable<ConvolutionImpl> {
  ConvolutionImpl() { ConvolutionImpl::reset(); }
  void reset() override {
    torch::manual_seed(4);
    layer = register_module("layer", torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 4, 3)));
  }
  at::Tensor forward(const at::Tensor& input) { return at::relu(layer(input)); }
  torch::nn::Conv2d layer{nullptr};
};
TORCH_MODULE(Convolution);

// Tensors that are cut, handed to threads and joined again keep their elements, whatever their
// layout.
TEST(DataParallel, inputs_and_parameters_of_every_layout_have_the_elements_of_one_module) {
  using Layout = std::function<at::Tensor(const at::Tensor&)>;
  const std::vector<std::pair<const char*, Layout>> layouts = {
      {"contiguous", [](const at::Tensor& x) { return x.clone(); }},
      {"channels_last",
       [](const at::Tensor& x) { return x.clone(at::MemoryFormat::ChannelsLast); }},
      {"batch_last",
       [](const at::Tensor& x) {
         return x.permute({1, 2, 3, 0}).contiguous().permute({3, 0, 1, 2});
       }},
      {"sliced",
       [](const at::Tensor& x) {
         return at::cat({x, x}, -1).slice(-1, 0, x.size(-1));
       }},
      {"expanded", [](const at::Tensor& x) { return x.narrow(0, 0, 1).clone().expand(x.sizes()); }},
  };
  const at::Tensor values = at::randn({7, 3, 6, 5}, at::detail::createCPUGenerator(1))
                                .narrow(0, 0, 1)
                                .expand({7, 3, 6, 5});
  for (const auto& [of_input, input_layout] : layouts) {
    for (const auto& [of_weight, weight_layout] : layouts) {
      if (of_weight == std::string("expanded")) continue;  // a parameter cannot be expanded
      SCOPED_TRACE(std::string(of_input) + " input, " + of_weight + " weight");
      Convolution whole, parallel;
      parallel->layer->weight.set_data(weight_layout(parallel->layer->weight.detach()));
      DataParallel<ConvolutionImpl> model(parallel, 3);
      const at::Tensor wanted_input = values.clone().requires_grad_();
      const at::Tensor input = input_layout(values).requires_grad_();
      const at::Tensor wanted = whole(wanted_input), output = model(input);
      EXPECT_TRUE(at::allclose(output, wanted, 1e-5, 1e-6));
      wanted.square().sum().backward();
      output.square().sum().backward();
      EXPECT_TRUE(at::allclose(input.grad(), wanted_input.grad(), 1e-4, 1e-5));
      for (std::size_t i = 0; i < whole->parameters().size(); ++i) {
        EXPECT_TRUE(
            at::allclose(model.parameters()[i].grad(), whole->parameters()[i].grad(), 1e-4, 1e-5))
            << i;
      }
    }
  }
}

TEST(DataParallel, a_training_equals_the_modules_own_and_is_the_same_in_every_run) {
  const auto train = [](auto& model, std::vector<at::Tensor> parameters) {
    torch::optim::Adam optimizer(parameters, 0.01);
    for (std::uint64_t step = 0; step < 10; ++step) {
      optimizer.zero_grad();
      model->forward(batch(22, step)).square().mean().backward();
      optimizer.step();
    }
  };
  TwoLayers whole = make_layers(), first = make_layers(), second = make_layers();
  train(whole, whole->parameters());
  DataParallel one(first.ptr(), 3), other(second.ptr(), 3);
  train(one, one.parameters());
  train(other, other.parameters());
  for (std::size_t i = 0; i < whole->parameters().size(); ++i) {
    EXPECT_TRUE(at::allclose(first->parameters()[i], whole->parameters()[i], 1e-3, 1e-4)) << i;
    EXPECT_TRUE(at::equal(first->parameters()[i], second->parameters()[i])) << i;
  }
}

// DistributedDataParallel adds gradients in the same way.
TEST(DataParallel, gradients_are_added_up_by_the_balanced_tree) {
  struct Scale : torch::nn::Cloneable<Scale> {
    Scale() { reset(); }
    void reset() override { weight = register_parameter("weight", at::ones({1})); }
    at::Tensor forward(const at::Tensor& input) { return weight * input; }
    at::Tensor weight;
  };
  DataParallel model(std::make_shared<Scale>(), 6);
  const auto x = at::rand({6}, at::detail::createCPUGenerator(3)) * 1e3;
  model(x).backward(at::ones({6}));
  const auto expected = ((x[0] + x[1]) + (x[2] + x[3])) + (x[4] + x[5]);
  EXPECT_EQ(model.parameters()[0].grad().item<float>(), expected.item<float>());
}

TEST(DataParallel, the_first_replicas_buffers_are_kept_and_the_others_dropped) {
  TwoLayers layers = make_layers(true), alone = make_layers(true);
  DataParallel<TwoLayersImpl> model(layers, 2);
  for (std::uint64_t step = 0; step < 2; ++step) {
    const auto input = batch(9, step);
    model(input);
    alone(input.slice(0, 0, 5));
  }
  EXPECT_EQ(layers->norm->num_batches_tracked.item<int>(), 2);
  EXPECT_TRUE(at::allclose(layers->norm->running_mean, alone->norm->running_mean));
  EXPECT_TRUE(at::allclose(layers->norm->running_var, alone->norm->running_var));
}

TEST(DataParallel, follows_modes_frozen_and_replaced_parameters) {
  TwoLayers layers = make_layers(true);
  DataParallel<TwoLayersImpl> model(layers, 3);
  const auto input = batch(12);
  model(input).sum().backward();

  model.eval();
  EXPECT_TRUE(at::allclose(model(input), layers(input), 1e-5, 1e-6));
  model.train();
  layers->norm->eval();  // one part is in evaluation mode
  EXPECT_TRUE(at::allclose(model(input), layers(input), 1e-5, 1e-6));

  layers->zero_grad();
  layers->first->weight.mutable_grad() = at::Tensor();
  layers->first->weight.requires_grad_(false);
  model(input).sum().backward();
  EXPECT_FALSE(layers->first->weight.grad().defined());
  EXPECT_TRUE(layers->first->bias.grad().defined());

  layers->to(at::kDouble);
  EXPECT_EQ(model(input.to(at::kDouble)).scalar_type(), at::kDouble);
  const at::NoGradGuard no_grad;
  EXPECT_FALSE(model(input.to(at::kDouble)).requires_grad());
}

// A graph keeps its replicas, so a pass in between does not change what it computes.
TEST(DataParallel, passes_may_overlap) {
  TwoLayers whole = make_layers(), layers = make_layers();
  DataParallel<TwoLayersImpl> model(layers, 2);
  const auto first = model(batch(8, 1));
  const auto second = model(batch(8, 2));
  second.square().sum().backward();
  first.sum().backward();
  whole(batch(8, 2)).square().sum().backward();
  whole(batch(8, 1)).sum().backward();
  for (std::size_t i = 0; i < whole->parameters().size(); ++i) {
    if (!whole->parameters()[i].grad().defined()) continue;
    EXPECT_TRUE(
        at::allclose(model.parameters()[i].grad(), whole->parameters()[i].grad(), 1e-4, 1e-5));
  }
}

TEST(DataParallel, a_graph_may_outlive_the_wrapper) {
  TwoLayers layers = make_layers();
  at::Tensor output;
  {
    DataParallel<TwoLayersImpl> model(layers, 2);
    output = model(batch(4));
  }
  output.sum().backward();
  EXPECT_TRUE(layers->first->weight.grad().defined());
}

struct SeveralImpl : torch::nn::Cloneable<SeveralImpl> {
  SeveralImpl() { SeveralImpl::reset(); }
  void reset() override {
    weight = register_parameter("weight", at::full({1}, 2.0));
    unused = register_parameter("unused", at::ones({1}));
  }
  // Features, the mean over this replica's samples, and the number of its samples for each of them.
  std::tuple<at::Tensor, at::Tensor, at::Tensor> forward(const at::Tensor& a, double factor,
                                                         const at::Tensor& b,
                                                         const at::Tensor& none) {
    EXPECT_FALSE(none.defined());
    return {weight * a * factor + b, (weight * a).mean(), at::full({a.size(0)}, a.size(0))};
  }
  at::Tensor weight, unused;
};

TEST(DataParallel, takes_several_arguments_and_returns_several_tensors) {
  DataParallel model(std::make_shared<SeveralImpl>(), 2);
  const auto a = at::arange(5, at::kFloat).requires_grad_();
  const auto [features, means, counts] = model(a, 3.0, at::ones({5}), at::Tensor());
  EXPECT_TRUE(at::equal(features, 6 * at::arange(5, at::kFloat) + 1));
  EXPECT_TRUE(at::equal(means, at::tensor({2.0F, 7.0F})));  // one scalar of each replica
  EXPECT_TRUE(at::equal(counts.to(at::kLong), at::tensor({3, 3, 3, 2, 2}).to(at::kLong)));
  EXPECT_FALSE(counts.requires_grad());
  (means[1] + features.sum() * 0).backward();
  EXPECT_TRUE(at::equal(a.grad(), at::tensor({0.0F, 0.0F, 0.0F, 1.0F, 1.0F})));
  EXPECT_FALSE(model.module().unused.grad().defined());
}

// Two replicas wait for each other in forward(), so they must run at the same time.
TEST(DataParallel, replicas_run_at_the_same_time_with_no_more_threads_than_the_caller_had) {
  struct Meeting : torch::nn::Cloneable<Meeting> {
    void reset() override {}
    at::Tensor forward(const at::Tensor& /*input*/) {
      ++*arrived;
      while (*arrived < 2) std::this_thread::yield();
      return at::full({1}, at::get_num_threads());
    }
    std::shared_ptr<std::atomic<int>> arrived = std::make_shared<std::atomic<int>>(0);
  };
  const int threads = at::get_num_threads();
  DataParallel model(std::make_shared<Meeting>(), 2);
  const auto counts = model(batch(2));
  EXPECT_LE(counts.sum().item<int>(), std::max(threads, 2));
  EXPECT_EQ(at::get_num_threads(), threads);
}

TEST(DataParallel, checkpointed_parts_get_their_gradients) {
  struct Checkpointed : torch::nn::Cloneable<Checkpointed> {
    Checkpointed() { reset(); }
    void reset() override { part = register_module("part", torch::nn::Linear(6, 2)); }
    at::Tensor forward(const at::Tensor& input) {
      return activation_checkpoint([this](const at::Tensor& x) { return part(x).tanh(); }, input);
    }
    torch::nn::Linear part{nullptr};
  };
  const auto module = std::make_shared<Checkpointed>();
  DataParallel model(module, 3);
  model(batch(7)).sum().backward();
  const auto parallel = module->part->weight.grad().clone();
  module->zero_grad();
  module->forward(batch(7)).sum().backward();
  EXPECT_TRUE(at::allclose(parallel, module->part->weight.grad(), 1e-4, 1e-5));
}

// ---- bad input and faults

struct FailingImpl : torch::nn::Cloneable<FailingImpl> {
  FailingImpl() { FailingImpl::reset(); }
  void reset() override { layer = register_module("layer", torch::nn::Linear(6, 2)); }
  at::Tensor forward(const at::Tensor& input) {
    if (input[0][0].item<float>() > 0) throw std::runtime_error("no positive numbers");
    return layer(input);
  }
  torch::nn::Linear layer{nullptr};
};

TEST(DataParallel, an_exception_is_thrown_with_the_replicas_number_and_the_next_pass_works) {
  DataParallel model(std::make_shared<FailingImpl>(), 3);
  auto input = -at::ones({6, 6});
  input[2] = 1;  // a sample of replica 1
  EXPECT_EQ(error_of([&] { model(input); }), "replica 1 of 3: forward: no positive numbers");
  EXPECT_NE(error_of([&] {
              model(at::zeros({6, 5}));
            }).find("replica 0 of 3: forward: "),
            std::string::npos);
  model(-at::ones({6, 6})).sum().backward();
  EXPECT_TRUE(model.parameters()[0].grad().defined());
}

TEST(DataParallel, an_exception_in_a_backward_pass_is_thrown_with_the_replicas_number) {
  struct Thrower : torch::autograd::Function<Thrower> {
    static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x) {
      context->saved_data["throws"] = x[0].item<float>() > 0;
      return x.clone();
    }
    static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                   torch::autograd::variable_list gradients) {
      if (context->saved_data["throws"].toBool()) throw std::runtime_error("no way back");
      return gradients;
    }
  };
  struct Net : torch::nn::Cloneable<Net> {
    void reset() override {}
    at::Tensor forward(const at::Tensor& input) { return Thrower::apply(input); }
  };
  DataParallel model(std::make_shared<Net>(), 2);
  const auto output = model(at::tensor({0.0F, 1.0F}).requires_grad_());
  const auto text = error_of([&] { output.sum().backward(); });
  EXPECT_THAT(text, Says("copies.failed", 1, 2, "backward", "no way back"));
}

TEST(DataParallel, a_module_that_cannot_be_cloned_is_an_error_that_says_what_to_do) {
  struct Plain : torch::nn::Module {
    at::Tensor forward(const at::Tensor& input) { return input; }
  };
  EXPECT_THAT(error_of([] { DataParallel model(std::make_shared<Plain>(), 2); }),
              Says("copies.not_cloneable"));
  struct Derived : TwoLayersImpl {};
  EXPECT_THAT(error_of([] { DataParallel model(std::make_shared<Derived>(), 2); }),
              Says("copies.other_type"));
  DataParallel alone(std::make_shared<Plain>(), 1);  // one replica needs no clone
  EXPECT_TRUE(at::equal(alone(at::ones({2})), at::ones({2})));
}

TEST(DataParallel, refuses_inputs_that_it_cannot_cut) {
  DataParallel model(std::make_shared<SeveralImpl>(), 2);
  const at::Tensor none;
  EXPECT_THAT(error_of([&] { model(at::ones({4}), 1.0, at::ones({3}), none); }),
              Says("copies.inputs_differ", 4, 3));
  EXPECT_THAT(error_of([&] { model(at::scalar_tensor(1.0), 1.0, at::ones({3}), none); }),
              Says("copies.input_scalar"));
  EXPECT_THAT(error_of([&] { model(none, 1.0, none, none); }), Says("copies.no_input"));
  EXPECT_THAT(error_of([] { DataParallel bad(std::make_shared<SeveralImpl>(), 0); }),
              Says("copies.too_few", 0));
}

TEST(DataParallel, a_step_between_forward_and_backward_is_an_error) {
  TwoLayers layers = make_layers();
  DataParallel<TwoLayersImpl> model(layers, 2);
  const auto output = model(batch(4));
  {
    const at::NoGradGuard no_grad;
    layers->first->weight.add_(1);
  }
  const auto text = error_of([&] { output.sum().backward(); });
  EXPECT_THAT(text, Says("copies.changed_between"));
}

}  // namespace
}  // namespace paceline
