// Compares the halves of a backward pass with the whole pass: bitwise equal.

#include "paceline/training/pipeline/backward_pass.h"

#include <gtest/gtest.h>

#include <torch/torch.h>

#include "tests/training/pipeline/stage_models.h"

namespace paceline {
namespace {

using Tensors = BackwardPass::Tensors;

bool are_equal(const Tensors& a, const Tensors& b) {
  if (a.size() != b.size()) return false;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (a[i].defined() != b[i].defined() || (a[i].defined() && !at::equal(a[i], b[i])))
      return false;
  }
  return true;
}

// Calls `forward` twice: for the whole pass and for the halves.
void expect_equal_halves(const std::function<Tensors(const Tensors&)>& forward,
                         const Tensors& inputs, const Tensors& parameters, bool repeats) {
  Tensors gradients;
  for (const auto& output : forward(inputs)) gradients.push_back(made_up(output.sizes(), 0.4));
  BackwardPass once(forward(inputs), inputs, parameters);
  const auto whole = once.whole(gradients);
  BackwardPass halves(forward(inputs), inputs, parameters);
  EXPECT_TRUE(are_equal(halves.input_half(gradients), whole.of_inputs));
  EXPECT_EQ(halves.repeats(), repeats);
  EXPECT_TRUE(are_equal(halves.weight_half(), whole.of_parameters));
}

TEST(BackwardPassTest, halves_of_a_block) {
  const auto stage = block_stage(1);
  expect_equal_halves(stage.forward, {made_up({3, kWidth}, 0).requires_grad_()}, stage.parameters,
                      false);
}

TEST(BackwardPassTest, halves_of_a_convolution) {
  torch::nn::Conv2d conv(torch::nn::Conv2dOptions(2, 3, 3).padding(1));
  torch::nn::BatchNorm2d norm(3);
  auto parameters = conv->parameters();
  for (const auto& parameter : norm->parameters()) parameters.push_back(parameter);
  expect_equal_halves(
      [&](const Tensors& inputs) { return Tensors{at::relu(norm(conv(inputs[0])))}; },
      {made_up({2, 2, 5, 5}, 0).requires_grad_()}, parameters, false);
}

TEST(BackwardPassTest, a_parameter_that_two_layers_share) {
  const auto weight = made_up({kWidth, kWidth}, 2).requires_grad_();
  expect_equal_halves(
      [&](const Tensors& inputs) {
        return Tensors{at::tanh(inputs[0].matmul(weight)).matmul(weight)};
      },
      {made_up({3, kWidth}, 0).requires_grad_()}, {weight}, true);
}

TEST(BackwardPassTest, no_inputs_unused_parameters_and_several_outputs) {
  const auto weight = made_up({kWidth, kWidth}, 2).requires_grad_();
  const auto unused = made_up({2}, 2).requires_grad_();
  const auto data = made_up({3, kWidth}, 0);
  expect_equal_halves(
      [&](const Tensors&) {
        const auto hidden = data.matmul(weight);
        return Tensors{hidden, at::tanh(hidden)};
      },
      {}, {weight, unused}, false);
  const auto input = data.clone().requires_grad_();
  expect_equal_halves(
      [&](const Tensors& inputs) {
        const auto parts = inputs[0].matmul(weight).split(2, 1);
        return Tensors{parts[0], at::tanh(parts[2]), inputs[0]};
      },
      {input}, {weight, unused}, false);
}

// A parameter that reaches the output without meeting an input.
TEST(BackwardPassTest, a_parameter_that_meets_no_input) {
  const auto weight = made_up({kWidth}, 2).requires_grad_();
  expect_equal_halves(
      [&](const Tensors& inputs) {
        return Tensors{inputs[0].sin(), weight.exp()};
      },
      {made_up({kWidth}, 0).requires_grad_()}, {weight}, true);
}

// The second half runs only the operations that parameters need.
TEST(BackwardPassTest, the_second_half_does_not_repeat_the_first) {
  struct Counted : torch::autograd::Function<Counted> {
    static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& input,
                              std::int64_t counter) {
      context->saved_data["counter"] = counter;
      return input * 2;
    }
    static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                   torch::autograd::variable_list gradients) {
      ++*reinterpret_cast<int*>(context->saved_data["counter"].toInt());
      return {gradients[0] * 2, at::Tensor()};
    }
  };
  int calls = 0;
  const auto counter = static_cast<std::int64_t>(reinterpret_cast<std::intptr_t>(&calls));
  const auto weight = made_up({kWidth, kWidth}, 2).requires_grad_();
  const auto input = made_up({3, kWidth}, 0).requires_grad_();
  BackwardPass pass({Counted::apply(Counted::apply(input, counter).matmul(weight), counter)},
                    {input}, {weight});
  pass.input_half({made_up({3, kWidth}, 1)});
  EXPECT_EQ(calls, 2);
  EXPECT_TRUE(pass.weight_half()[0].defined());
  EXPECT_EQ(calls, 2);
}

}  // namespace
}  // namespace paceline
