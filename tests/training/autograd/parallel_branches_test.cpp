// Branches on several ranks compute bitwise the same as the same branches on one rank, in float64.

#include <gtest/gtest.h>

#include <torch/torch.h>

#include "paceline/training/autograd/branch_functions.h"
#include "paceline/training/tensor/random.h"
#include "paceline/training/tensor/random_state.h"

#include "tests/harness/expect_error.h"
#include "tests/harness/thread_ranks.h"

namespace paceline {
namespace {

using harness::run_ranks;
using harness::run_ranks_ok;
using Tensors = std::vector<at::Tensor>;

GroupPtr lent(ProcessGroup& group) {
  return {&group, [](ProcessGroup*) {}};
}

// The same values on every rank.
at::Tensor waves(at::IntArrayRef sizes, double phase) {
  const auto count = at::empty(sizes).numel();
  return (at::arange(count, at::kDouble) * 0.7 + phase).sin().reshape(sizes);
}

std::vector<int> in_turns(std::size_t branches, int ranks) {
  std::vector<int> owner;
  for (std::size_t i = 0; i < branches; ++i) owner.push_back(static_cast<int>(i) % ranks);
  return owner;
}

Tensors run_here(const std::vector<Branch>& branches, const Tensors& inputs) {
  Tensors results;
  for (const Branch& branch : branches) results.push_back(branch.forward(inputs));
  return results;
}

// A branch that multiplies its first input by its own weight.
Branch product(const std::string& name, const at::Tensor& weight) {
  return {name,
          [weight](const Tensors& inputs) { return at::tanh(inputs[0].matmul(weight)); },
          {weight}};
}

std::vector<Branch> three_products() {
  std::vector<Branch> branches;
  for (int i = 0; i < 3; ++i)
    branches.push_back(product("product " + std::to_string(i), waves({3, 3}, i).requires_grad_()));
  return branches;
}

// An Inception block (Szegedy et al., 2015): four branches with the same image as input.
struct Inception {
  Inception() {
    for (std::size_t i = 0; i < weights.size(); ++i)
      weights[i] = waves(sizes[i], static_cast<double>(i)).requires_grad_();
    const auto conv = [this](const at::Tensor& x, std::size_t i) {
      const auto padding = (weights[i].size(2) - 1) / 2;
      return at::relu(at::conv2d(x, weights[i], {}, 1, padding));
    };
    branches = {
        {"1x1", [=](const Tensors& x) { return conv(x[0], 0); }, {weights[0]}},
        {"3x3", [=](const Tensors& x) { return conv(conv(x[0], 1), 2); }, {weights[1], weights[2]}},
        {"5x5", [=](const Tensors& x) { return conv(conv(x[0], 3), 4); }, {weights[3], weights[4]}},
        {"pool",
         [=](const Tensors& x) { return conv(at::max_pool2d(x[0], 3, 1, 1), 5); },
         {weights[5]}}};
  }
  std::vector<std::vector<std::int64_t>> sizes = {{4, 3, 1, 1}, {2, 3, 1, 1}, {5, 2, 3, 3},
                                                  {2, 3, 1, 1}, {3, 2, 5, 5}, {2, 3, 1, 1}};
  Tensors weights = Tensors(6);
  std::vector<Branch> branches;
};

// Layers before and after the branches; the image is also used outside of them.
at::Tensor loss_around(const at::Tensor& image, const at::Tensor& filter,
                       const std::function<Tensors(const Tensors&)>& branches) {
  const auto x = at::tanh(image * 1.5);
  const auto joined = at::cat(branches({x}), 1);
  return at::conv2d(joined, filter).sin().sum() + x.pow(2).sum();
}

TEST(ParallelBranches, an_inception_block_has_the_bits_of_one_process) {
  for (const int world_size : {1, 2, 3, 4, 6}) {
    run_ranks_ok(world_size, [&](ProcessGroup& own) {
      const Inception block;
      const auto& branches = block.branches;
      const auto image = waves({2, 3, 6, 6}, 5).requires_grad_();
      const auto filter = waves({1, 14, 1, 1}, 6).requires_grad_();
      Tensors all = block.weights;
      all.insert(all.end(), {image, filter});
      const auto one =
          loss_around(image, filter, [&](const Tensors& x) { return run_here(branches, x); });
      const auto expected = torch::autograd::grad({one}, all);

      const auto owner = in_turns(branches.size(), world_size);
      const auto loss = loss_around(image, filter, [&](const Tensors& x) {
        return parallel_branches(lent(own), x, branches, owner);
      });
      loss.backward();
      EXPECT_TRUE(at::equal(loss, one));
      EXPECT_TRUE(at::equal(image.grad(), expected[6]));
      EXPECT_TRUE(at::equal(filter.grad(), expected[7]));
      for (std::size_t b = 0; b < branches.size(); ++b) {
        for (const auto& weight : branches[b].parameters)
          EXPECT_EQ(weight.grad().defined(), owner[b] == own.rank());
      }
      share_branch_gradients(own, branches, owner);
      for (std::size_t i = 0; i < block.weights.size(); ++i)
        EXPECT_TRUE(at::equal(block.weights[i].grad(), expected[i])) << i;
    });
  }
}

// Operations 1 and 2 run at the same time; then 3, which needs both, and 4, which needs 2.
TEST(ParallelBranches, a_graph_of_four_operations_has_the_bits_of_one_process) {
  for (int world_size = 1; world_size <= 4; ++world_size) {
    run_ranks_ok(world_size, [&](ProcessGroup& own) {
      Tensors weights;
      for (int i = 0; i < 4; ++i) weights.push_back(waves({3, 3}, i).requires_grad_());
      const std::vector<Branch> first = {product("1", weights[0]), product("2", weights[1])};
      const std::vector<Branch> second = {
          {"3", [&](const Tensors& x) { return x[0].matmul(weights[2]) + x[1]; }, {weights[2]}},
          {"4", [&](const Tensors& x) { return at::exp(x[1].matmul(weights[3])); }, {weights[3]}}};
      const auto input = waves({4, 3}, 7).requires_grad_();
      const auto before = run_here(second, run_here(first, {input}));
      const auto one = (before[0] * before[1]).sum();
      Tensors all = weights;
      all.push_back(input);
      const auto expected = torch::autograd::grad({one}, all);

      // The owners of the second group begin with the last rank, so that results move between
      // ranks.
      const std::vector<int> now = in_turns(2, world_size);
      const std::vector<int> then = {world_size - 1, 0};
      const auto middle = parallel_branches(lent(own), {input}, first, now);
      const auto after = parallel_branches(lent(own), middle, second, then);
      const auto loss = (after[0] * after[1]).sum();
      loss.backward();
      share_branch_gradients(own, first, now);
      share_branch_gradients(own, second, then);
      EXPECT_TRUE(at::equal(loss, one));
      for (std::size_t i = 0; i < all.size(); ++i)
        EXPECT_TRUE(at::equal(all[i].grad(), expected[i])) << i;
    });
  }
}

TEST(ParallelBranches, results_may_be_integers_inputs_or_without_a_gradient) {
  run_ranks_ok(3, [](ProcessGroup& own) {
    const auto constant = waves({2}, 1);
    const std::vector<Branch> branches = {
        {"largest", [](const Tensors& x) { return x[0].argmax(1); }},
        {"itself", [](const Tensors& x) { return x[0]; }},
        {"other input", [](const Tensors& x) { return x[1] * 2; }},
        {"constant", [&](const Tensors&) { return constant; }},
        {"turned", [](const Tensors& x) { return x[0].t(); }},
        {"none", [](const Tensors&) {
           return at::empty({0, 4});
         }}};
    const auto x = waves({2, 3}, 0).requires_grad_();
    const auto counts = at::arange(3);
    const auto results =
        parallel_branches(lent(own), {x, counts}, branches, in_turns(branches.size(), 3));
    const auto expected = run_here(branches, {x, counts});
    for (std::size_t i = 0; i < results.size(); ++i) {
      EXPECT_EQ(results[i].scalar_type(), expected[i].scalar_type());
      EXPECT_TRUE(at::equal(results[i], expected[i])) << branches[i].name;
      EXPECT_EQ(results[i].requires_grad(), expected[i].requires_grad()) << branches[i].name;
      EXPECT_TRUE(results[i].is_contiguous());
      EXPECT_FALSE(results[i].is_alias_of(x)) << branches[i].name;
    }
    (results[1] * 3 + results[4].t() * results[4].t()).sum().backward();
    EXPECT_TRUE(at::allclose(x.grad(), 3 + 2 * x.detach(), 1e-14, 1e-14));
  });
}

TEST(ParallelBranches, a_result_that_is_not_used_gives_no_gradients) {
  run_ranks_ok(2, [](ProcessGroup& own) {
    const auto branches = three_products();
    const std::vector<int> owner = {0, 1, 1};
    const auto x = waves({2, 3}, 0).requires_grad_();
    const auto expected =
        torch::autograd::grad({run_here(branches, {x})[2].sum()}, {x, branches[2].parameters[0]});
    parallel_branches(lent(own), {x}, branches, owner)[2].sum().backward();
    share_branch_gradients(own, branches, owner);
    EXPECT_FALSE(branches[0].parameters[0].grad().defined());
    EXPECT_FALSE(branches[1].parameters[0].grad().defined());
    EXPECT_TRUE(at::equal(branches[2].parameters[0].grad(), expected[1]));
    EXPECT_TRUE(at::equal(x.grad(), expected[0]));
  });
}

TEST(ParallelBranches, inputs_may_need_no_gradient_and_calls_no_graph) {
  run_ranks_ok(2, [](ProcessGroup& own) {
    const auto branches = three_products();
    const auto x = waves({2, 3}, 0);
    const auto expected = run_here(branches, {x});
    {
      const at::NoGradGuard no_gradients;
      for (const auto& result : parallel_branches(lent(own), {x}, branches, {1, 0, 1}))
        EXPECT_FALSE(result.requires_grad());
    }
    const auto results = parallel_branches(lent(own), {x}, branches, {1, 0, 1});
    at::cat(results).sum().backward();
    EXPECT_EQ(branches[0].parameters[0].grad().defined(), own.rank() == 1);
    EXPECT_TRUE(at::equal(results[1], expected[1]));
    EXPECT_TRUE(parallel_branches(lent(own), {x}, {}, {}).empty());
  });
}

TEST(ParallelBranches, a_branch_that_throws_is_named_on_every_rank_and_the_group_goes_on) {
  run_ranks_ok(3, [](ProcessGroup& own) {
    auto branches = three_products();
    const auto good = branches[1].forward;
    const auto x = waves({2, 3}, 0).requires_grad_();
    branches[1].forward = [&](const Tensors&) -> at::Tensor {
      throw std::runtime_error("no luck");
    };
    const auto call = [&] { parallel_branches(lent(own), {x}, branches, {0, 2, 1}); };
    expect_error(ErrorCode::kInvalid, {"rank 2", "branch 'product 1'", "Double [2, 3]", "no luck"},
                 call);
    branches[1].forward = [&](const Tensors& inputs) { return inputs[0].matmul(inputs[0]); };
    expect_error(ErrorCode::kInvalid, {"rank 2", "branch 'product 1'"}, call);
    branches[1].forward = [&](const Tensors&) { return at::Tensor(); };
    expect_error(ErrorCode::kInvalid, {"branch 'product 1'", "dense tensor"}, call);
    branches[1].forward = [&](const Tensors& inputs) { return inputs[0].add_(1); };
    expect_error(ErrorCode::kInvalid, {"branch 'product 1'"}, call);
    branches[1].forward = good;
    call();
  });
}

struct Broken : torch::autograd::Function<Broken> {
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& x) {
    return x * 2;
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 const torch::autograd::variable_list&) {
    throw std::runtime_error("no way back");
  }
};

TEST(ParallelBranches, a_backward_pass_that_throws_is_told_to_every_rank) {
  const auto results = run_ranks(3, [](ProcessGroup& own) {
    auto branches = three_products();
    branches[1] = {"broken", [](const Tensors& x) { return Broken::apply(x[0]); }};
    const auto x = waves({2, 3}, 0).requires_grad_();
    try {
      at::cat(parallel_branches(lent(own), {x}, branches, {0, 1, 2})).sum().backward();
    } catch (const Error&) {
      throw;
    } catch (const std::exception& error) {
      EXPECT_EQ(own.rank(), 1);
      throw Error(ErrorCode::kInvalid, error.what());
    }
  });
  for (const std::size_t rank : {0u, 1u, 2u}) {
    ASSERT_TRUE(results[rank].error) << rank;
    const std::string what = results[rank].error->what();
    EXPECT_NE(what.find(rank == 1 ? "no way back" : "'broken'"), std::string::npos) << what;
  }
}

TEST(ParallelBranches, calls_that_differ_between_ranks_show_both_sides) {
  run_ranks_ok(2, [](ProcessGroup& own) {
    auto branches = three_products();
    const auto x = waves({2, 3}, 0).requires_grad_();
    const bool is_first = own.rank() == 0;
    expect_error(ErrorCode::kInvalid,
                 {"rank 1 made another call", "'product 2' with 1 parameters and buffers on"}, [&] {
                   parallel_branches(lent(own), {x}, branches, {0, 1, is_first ? 0 : 1});
                 });
    expect_error(ErrorCode::kInvalid, {"inputs (Double [2, 3])", "inputs (Double [4, 3])"}, [&] {
      parallel_branches(lent(own), {is_first ? x : at::cat({x, x})}, branches, {0, 1, 0});
    });
    expect_error(ErrorCode::kInvalid, {"inputs 'y'", "inputs 'n'"}, [&] {
      parallel_branches(lent(own), {is_first ? x : x.detach()}, branches, {0, 1, 0});
    });
    expect_error(ErrorCode::kInvalid, {"parallel_branches of", "share_branch_gradients of"}, [&] {
      if (is_first) parallel_branches(lent(own), {x}, branches, {0, 1, 0});
      if (!is_first) share_branch_gradients(own, branches, {0, 1, 0});
    });
    std::vector<int> owner = {0, 1, 0};
    if (!is_first) branches.pop_back(), owner.pop_back();
    expect_error(ErrorCode::kInvalid, {"3 branches", "2 branches"},
                 [&] { parallel_branches(lent(own), {x}, branches, owner); });
  });
}

TEST(ParallelBranches, calls_that_no_rank_can_carry_out_are_refused) {
  run_ranks_ok(2, [](ProcessGroup& own) {
    auto branches = three_products();
    const auto x = waves({2, 3}, 0).requires_grad_();
    const auto refused = [&](const std::vector<std::string>& words, const Tensors& inputs,
                             const std::vector<int>& owner) {
      expect_error(ErrorCode::kInvalid, words,
                   [&] { parallel_branches(lent(own), inputs, branches, owner); });
    };
    refused({"rank 0: parallel_branches", "2 owners for 3 branches"}, {x}, {0, 1});
    refused({"'product 1' is assigned to rank 2, but the group has 2 ranks"}, {x}, {0, 2, 1});
    refused({"'product 0' is assigned to rank -1"}, {x}, {-1, 0, 1});
    refused({"an input is undefined"}, {at::Tensor()}, {0, 1, 0});
    branches[2].parameters = branches[0].parameters;
    refused({"'product 0' and 'product 2' share a parameter"}, {x}, {0, 1, 1});
    parallel_branches(lent(own), {x}, branches, {0, 1, 0});
    branches[1].forward = nullptr;
    refused({"rank 1: branch 'product 1'", "no function"}, {x}, {0, 1, 0});
    expect_error(ErrorCode::kInvalid, {"is not a member"}, [&] {
      parallel_branches(nullptr, {x}, branches, {0, 1, 0});
    });
  });
}

TEST(ParallelBranches, gradients_of_gradients_are_refused) {
  run_ranks_ok(2, [](ProcessGroup& own) {
    const auto x = waves({2, 3}, 0).requires_grad_();
    const auto loss = parallel_branches(lent(own), {x}, three_products(), {0, 1, 0})[1].sum();
    expect_error(ErrorCode::kUnsupported, {"gradients of gradients"},
                 [&] { torch::autograd::grad({loss}, {x}, {}, true, true); });
  });
}

TEST(ParallelBranches, random_numbers_do_not_depend_on_the_owners) {
  run_ranks_ok(3, [](ProcessGroup& own) {
    std::vector<Branch> branches;
    for (const char* name : {"a", "b", "c", "d"})
      branches.push_back(
          {name, [](const Tensors& x) { return paceline::dropout(x[0], 0.5, true); }});
    const auto x = waves({50}, 0);
    const auto run = [&](const std::vector<int>& owner) {
      seed_rank(7);
      auto results = parallel_branches(lent(own), {x}, branches, owner);
      results.push_back(at::empty({4}).uniform_(0, 1, rank_generator()));
      return results;
    };
    const auto expected = run({0, 0, 0, 0});
    EXPECT_FALSE(at::equal(expected[0], expected[1]));
    for (const std::vector<int>& owner : {std::vector{0, 1, 2, 0}, std::vector{2, 2, 1, 1}}) {
      const auto results = run(owner);
      for (std::size_t i = 0; i < results.size(); ++i)
        EXPECT_TRUE(at::equal(results[i], expected[i])) << i;
    }
  });
}

}  // namespace
}  // namespace paceline
