// Compares each layer with LibTorch's whole layer, in float32 and float64; and its errors.

#include "paceline/training/models/layers.h"

#include <gtest/gtest.h>

#include <torch/torch.h>

#include "paceline/training/autograd/regions.h"
#include "paceline/training/tensor/collectives.h"
#include "paceline/training/tensor/random.h"
#include "paceline/training/tensor/random_state.h"
#include "paceline/training/tensor_parallel/parallel_linear.h"
#include "paceline/training/tensor_parallel/sequence_parallel.h"
#include "paceline/training/tensor_parallel/tensor_parallel_layers.h"
#include "paceline/training/tensor_parallel/vocab_parallel.h"

#include "tests/harness/expect_error.h"
#include "tests/harness/thread_ranks.h"
#include "tests/training/tensor_parallel/dense_and_parallel.h"

namespace paceline {
namespace {

using harness::run_ranks;
using harness::run_ranks_ok;
using torch::nn::LinearOptions;

// A gradient for a result, without any symmetry.
at::Tensor slopes(const at::Tensor& like) {
  return torch::arange(like.numel(), like.options().requires_grad(false))
      .mul(0.7)
      .sin()
      .reshape(like.sizes());
}

at::Tensor sample(at::IntArrayRef sizes, torch::ScalarType type) {
  std::int64_t count = 1;
  for (const auto size : sizes) count *= size;
  return torch::arange(count, torch::kDouble).mul(1.3).cos().reshape(sizes).to(type);
}

struct Mlp : torch::nn::Module {
  explicit Mlp(const models::Layers& layers) {
    const models::InnerFeatures inner{.counts = {24}};
    first = layers.make_first(LinearOptions(12, 24), inner);
    register_module("first", first.ptr());
    last = layers.make_last(LinearOptions(24, 8), inner);
    register_module("last", last.ptr());
  }
  at::Tensor forward(const at::Tensor& input) {
    return last.forward<at::Tensor>(at::gelu(first.forward<at::Tensor>(input)));
  }
  torch::nn::AnyModule first, last;
};

models::Layers linear_layers(const GroupPtr& group, bool is_spread) {
  models::Layers layers;
  layers.column_linear = [=](const LinearOptions& options, const models::InnerFeatures& inner) {
    return torch::nn::AnyModule(ColumnParallelLinear(
        options, group,
        ColumnParallelOptions{.inner = inner, .sequence_parallel_input = is_spread}));
  };
  layers.row_linear = [=](const LinearOptions& options, const models::InnerFeatures& inner) {
    return torch::nn::AnyModule(RowParallelLinear(
        options, group, RowParallelOptions{.inner = inner, .sequence_parallel_output = is_spread}));
  };
  return layers;
}

class ParallelLayersTest : public testing::TestWithParam<int> {};

TEST_P(ParallelLayersTest, an_mlp_is_the_dense_one_in_results_and_every_gradient) {
  for (const auto type : {torch::kFloat, torch::kDouble}) {
    for (const bool is_spread : {false, true}) {
      const auto make = [](const models::Layers& layers) {
        return seeded(3, [&] { return std::make_shared<Mlp>(layers); });
      };
      const auto dense = make({});
      const StateDict initial = copies_of(*dense);
      dense->to(type);
      const at::Tensor input = sample({2, 4, 12}, type).requires_grad_();
      const at::Tensor output = dense->forward(input);
      output.backward(slopes(output));
      run_ranks_ok(GetParam(), [&](ProcessGroup& own) {
        const auto group = borrowed(own);
        const auto model = make(linear_layers(group, is_spread));
        expect_same_tensors(full_state_dict(*model, own), initial,
                            [](const auto& found, const auto& wanted, const auto& name) {
                              EXPECT_TRUE(torch::equal(found, wanted)) << name;
                            });
        model->to(type);
        const at::Tensor mine = input.detach().clone().requires_grad_();
        const at::Tensor result =
            is_spread
                ? gather_from_region(group, model->forward(scatter_to_region(group, mine, 1)), 1)
                : model->forward(mine);
        result.backward(slopes(result));
        expect_close(result, output, "output");
        expect_close(mine.grad(), input.grad(), "gradient of the input");
        expect_same_tensors(gradients_of(*model, own), gradients_of(*dense), expect_close);
      });
    }
  }
}

TEST_P(ParallelLayersTest, outputs_are_gathered_and_whole_inputs_divided_when_asked) {
  const at::Tensor input = sample({3, 8}, torch::kDouble);
  torch::nn::Linear dense = seeded(5, [] { return torch::nn::Linear(LinearOptions(8, 12)); });
  dense->to(torch::kDouble);
  const at::Tensor whole = input.clone().requires_grad_();
  const at::Tensor wanted = dense->forward(whole);
  wanted.backward(slopes(wanted));
  run_ranks_ok(GetParam(), [&](ProcessGroup& own) {
    const auto group = borrowed(own);
    const auto compare = [&](auto layer) {
      layer->to(torch::kDouble);
      const at::Tensor mine = input.clone().requires_grad_();
      const at::Tensor result = layer->forward(mine);
      result.backward(slopes(result));
      expect_close(result, wanted, "output");
      expect_close(mine.grad(), whole.grad(), "gradient of the input");
      expect_same_tensors(gradients_of(*layer, own), gradients_of(*dense), expect_close);
    };
    const LinearOptions options(8, 12);
    compare(seeded(5, [&] {
      return ColumnParallelLinear(options, group, ColumnParallelOptions{.gather_output = true});
    }));
    compare(seeded(5, [&] {
      return RowParallelLinear(options, group, RowParallelOptions{.whole_input = true});
    }));
    auto bare = ColumnParallelLinear(LinearOptions(8, 12).bias(false), group);
    EXPECT_EQ(bare->parameters().size(), 1u);
    const auto copy = std::dynamic_pointer_cast<ColumnParallelLinearImpl>(bare->clone());
    EXPECT_TRUE(torch::equal(copy->weight, bare->weight));
  });
}

TEST_P(ParallelLayersTest, spread_layers_have_the_whole_gradients) {
  const at::Tensor input = sample({2, 8, 6}, torch::kDouble);
  torch::nn::LayerNorm norm(torch::nn::LayerNormOptions({6}));
  auto linear = seeded(7, [] { return torch::nn::Linear(LinearOptions(6, 6)); });
  norm->to(torch::kDouble);
  linear->to(torch::kDouble);
  const at::Tensor wanted = linear->forward(norm->forward(input));
  wanted.backward(slopes(wanted));
  run_ranks_ok(GetParam(), [&](ProcessGroup& own) {
    const auto group = borrowed(own);
    SequenceParallelLayerNorm spread_norm(torch::nn::LayerNormOptions({6}), group);
    auto spread_linear =
        seeded(7, [&] { return SequenceParallelLinear(LinearOptions(6, 6), group); });
    spread_norm->to(torch::kDouble);
    spread_linear->to(torch::kDouble);
    const at::Tensor result = gather_from_region(
        group, spread_linear->forward(spread_norm->forward(scatter_to_region(group, input, 1))), 1);
    result.backward(slopes(result));
    expect_close(result, wanted, "output");
    expect_same_tensors(gradients_of(*spread_norm), gradients_of(*norm), expect_close);
    expect_same_tensors(gradients_of(*spread_linear), gradients_of(*linear), expect_close);
  });
}

TEST_P(ParallelLayersTest, an_embedding_has_the_whole_ones_bits) {
  auto dense = seeded(9, [] { return torch::nn::Embedding(24, 5); });
  const at::Tensor tokens = torch::arange(30).mul(7).remainder(24).view({2, 15});
  const at::Tensor wanted = dense->forward(tokens);
  wanted.backward(slopes(wanted));
  run_ranks_ok(GetParam(), [&](ProcessGroup& own) {
    auto layer = seeded(9, [&] {
      return VocabParallelEmbedding(torch::nn::EmbeddingOptions(24, 5), borrowed(own));
    });
    const at::Tensor result = layer->forward(tokens);
    EXPECT_TRUE(torch::equal(result, wanted));
    result.backward(slopes(result));
    EXPECT_TRUE(torch::equal(gradients_of(*layer, own).at("weight"), dense->weight.grad()));
  });
}

TEST_P(ParallelLayersTest, cross_entropy_is_that_of_the_whole_logits) {
  at::Tensor targets = torch::arange(12).mul(5).remainder(8).view({3, 4});
  targets[1][2] = -100;
  targets[2][0] = -100;
  for (const auto type : {torch::kFloat, torch::kDouble}) {
    for (const std::int64_t reduction :
         {at::Reduction::Mean, at::Reduction::Sum, at::Reduction::None}) {
      const at::Tensor whole = (sample({3, 4, 8}, type) * 30).requires_grad_();
      at::Tensor wanted =
          at::cross_entropy_loss(whole.flatten(0, 1), targets.flatten(), {}, reduction);
      if (reduction == at::Reduction::None) wanted = wanted.view({3, 4});
      wanted.backward(slopes(wanted) + 1);
      run_ranks_ok(GetParam(), [&](ProcessGroup& own) {
        const std::int64_t columns = 8 / own.world_size();
        const auto part = [&](const at::Tensor& all) {
          return all.narrow(-1, columns * own.rank(), columns);
        };
        const at::Tensor mine = part(whole.detach()).clone().requires_grad_();
        const at::Tensor loss =
            vocab_parallel_cross_entropy(borrowed(own), mine, targets, -100, reduction);
        expect_close(loss, wanted, "loss");
        loss.backward(slopes(loss) + 1);
        expect_close(mine.grad(), part(whole.grad()), "gradient");
      });
    }
  }
}

TEST_P(ParallelLayersTest, dropout_is_the_same_on_copies_and_differs_on_parts) {
  run_ranks_ok(GetParam(), [](ProcessGroup& own) {
    seed_rank(11);
    const at::Tensor ones = torch::ones({64, 64});
    for (int round = 0; round < 2; ++round) {
      const at::Tensor part = sharded_dropout(own, ones, 0.25, true);
      const at::Tensor copy = paceline::dropout(ones, 0.25, true);
      const auto parts = all_gather(own, part);
      const auto copies = all_gather(own, copy);
      for (int rank = 1; rank < own.world_size(); ++rank) {
        EXPECT_TRUE(torch::equal(copies[0], copies[static_cast<std::size_t>(rank)]));
        EXPECT_FALSE(torch::equal(parts[0], parts[static_cast<std::size_t>(rank)]));
      }
      EXPECT_NEAR(part.mean().item<double>(), 1, 0.05);
    }
    EXPECT_TRUE(torch::equal(sharded_dropout(own, ones, 0.25, false), ones));
    const RandomState state = random_state();
    const at::Tensor once = sharded_dropout(own, ones, 0.5, true);
    set_random_state(state);
    EXPECT_TRUE(torch::equal(sharded_dropout(own, ones, 0.5, true), once));
    expect_error(ErrorCode::kInvalid, {"1.5"}, [&] { sharded_dropout(own, ones, 1.5, true); });
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, ParallelLayersTest, testing::Values(1, 2, 4));

TEST(ParallelLayers, what_does_not_divide_is_an_error_that_names_it) {
  run_ranks_ok(4, [](ProcessGroup& own) {
    const auto group = borrowed(own);
    const std::string me = "rank " + std::to_string(own.rank());
    expect_error(ErrorCode::kInvalid, {me, "10 features do not divide among 4 ranks"},
                 [&] { ColumnParallelLinear(LinearOptions(8, 10), group); });
    expect_error(ErrorCode::kInvalid, {me, "6 features do not divide among 4 ranks"},
                 [&] { RowParallelLinear(LinearOptions(6, 8), group); });
    expect_error(ErrorCode::kInvalid, {me, "50257 tokens of the vocabulary do not divide"},
                 [&] { VocabParallelEmbedding(torch::nn::EmbeddingOptions(50257, 2), group); });
    const models::InnerFeatures heads{.block = "heads", .width = 4, .counts = {4, 2, 2}};
    expect_error(ErrorCode::kInvalid, {me, "2 heads do not divide among 4 ranks"}, [&] {
      ColumnParallelLinear(LinearOptions(8, 32), group, ColumnParallelOptions{.inner = heads});
    });
    const models::InnerFeatures few{.block = "heads", .width = 4, .counts = {4, 4, 4}};
    expect_error(ErrorCode::kInvalid, {"heads of width 4 are 48 features, not 32"}, [&] {
      ColumnParallelLinear(LinearOptions(8, 32), group, ColumnParallelOptions{.inner = few});
    });
    expect_error(ErrorCode::kInvalid, {"several kinds"}, [&] {
      ColumnParallelLinear(LinearOptions(8, 48), group,
                           ColumnParallelOptions{.inner = few, .gather_output = true});
    });
    expect_error(ErrorCode::kInvalid, {"one kind"}, [&] {
      RowParallelLinear(LinearOptions(48, 8), group, RowParallelOptions{.inner = few});
    });
    expect_error(ErrorCode::kUnsupported, {"sizes only"}, [&] {
      VocabParallelEmbedding(torch::nn::EmbeddingOptions(8, 2).padding_idx(0), group);
    });
    ColumnParallelLinear column(LinearOptions(8, 8), group);
    expect_error(ErrorCode::kInvalid, {me, "[2, 9]", "8 features"}, [&] {
      column->forward(torch::ones({2, 9}));
    });
    VocabParallelEmbedding embedding(torch::nn::EmbeddingOptions(8, 2), group);
    expect_error(ErrorCode::kInvalid, {me, "outside of the vocabulary of 8"},
                 [&] { embedding->forward(torch::full({1}, 8, torch::kLong)); });
    expect_error(ErrorCode::kInvalid, {me, "outside of the vocabulary of 8"},
                 [&] { embedding->forward(torch::full({1}, -1, torch::kLong)); });
    expect_error(ErrorCode::kInvalid, {me, "target is outside of the vocabulary of 8"}, [&] {
      vocab_parallel_cross_entropy(group, torch::ones({3, 2}), torch::full({3}, 8, torch::kLong));
    });
    expect_error(ErrorCode::kInvalid, {me, "logits [3, 2] do not fit targets [4]"}, [&] {
      vocab_parallel_cross_entropy(group, torch::ones({3, 2}), torch::zeros({4}, torch::kLong));
    });
  });
  expect_error(ErrorCode::kInvalid, {"is not a member"},
               [] { ColumnParallelLinear(LinearOptions(8, 8), nullptr); });
}

TEST(ParallelLayers, inputs_of_other_shapes_on_some_rank_are_an_error_on_all) {
  const auto results = run_ranks(2, [](ProcessGroup& own) {
    RowParallelLinear layer(LinearOptions(8, 4), borrowed(own));
    layer->forward(torch::ones({2 + own.rank(), 4}));
  });
  for (const auto& result : results) {
    ASSERT_TRUE(result.error);
    EXPECT_EQ(result.error->code(), ErrorCode::kInvalid) << result.error->what();
    EXPECT_NE(std::string(result.error->what()).find("float32 x 8"), std::string::npos)
        << result.error->what();
    EXPECT_NE(std::string(result.error->what()).find("float32 x 12"), std::string::npos)
        << result.error->what();
  }
}

}  // namespace
}  // namespace paceline
