// Compares divided and dense GPT and BERT models: initial weights, logits, loss and every gradient.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <torch/torch.h>

#include "paceline/engine/collectives/memory/one_copy.h"
#include "paceline/training/autograd/regions.h"
#include "paceline/training/models/bert.h"
#include "paceline/training/models/gpt.h"
#include "paceline/training/tensor/random.h"
#include "paceline/training/tensor_parallel/tensor_parallel_layers.h"
#include "paceline/training/tensor_parallel/vocab_parallel.h"

#include "tests/harness/expect_error.h"
#include "tests/harness/thread_ranks.h"
#include "tests/training/tensor_parallel/dense_and_parallel.h"

namespace paceline {
namespace {

using harness::run_ranks_ok;
using models::Bert;
using models::BertOptions;
using models::Gpt;
using models::GptOptions;

constexpr std::int64_t kVocabulary = 24;

GptOptions small_gpt(bool is_modern) {
  return {.vocabulary = kVocabulary,
          .context = 16,
          .layers = 2,
          .width = 32,
          .heads = 8,
          .key_value_heads = is_modern ? 4 : 0,
          .rotary_base = is_modern ? 10'000.0 : 0,
          .dropout = 0};
}

BertOptions small_bert() {
  return {.vocabulary = kVocabulary,
          .context = 16,
          .layers = 2,
          .width = 32,
          .heads = 4,
          .feed_forward = 40,
          .dropout = 0};
}

at::Tensor tokens(std::int64_t sequences, std::int64_t length, std::int64_t step) {
  return torch::arange(sequences * length)
      .mul(step)
      .remainder(kVocabulary)
      .view({sequences, length});
}

void expect_equal(const at::Tensor& found, const at::Tensor& wanted, const std::string& name) {
  EXPECT_TRUE(torch::equal(found, wanted)) << name;
}

struct Way {
  int ranks;
  bool sequence_parallel, gather_logits;
};

class ParallelModelsTest : public testing::TestWithParam<Way> {
 protected:
  TensorParallelOptions options() const {
    return {.sequence_parallel = GetParam().sequence_parallel,
            .gather_logits = GetParam().gather_logits};
  }

  // Compares a model made by `make(layers)` with the dense one, both run by `forward(model)`.
  template <class Make, class Forward>
  void compare(const Make& make, const Forward& forward) const {
    const at::Tensor targets = tokens(2, 8, 5);
    for (const auto type : {torch::kFloat, torch::kDouble}) {
      auto dense = seeded(21, [&] { return make(models::Layers{}); });
      const StateDict initial = copies_of(*dense);
      dense->to(type);
      const at::Tensor wanted = forward(dense);
      const at::Tensor wanted_loss = models::next_token_loss(wanted, targets);
      wanted_loss.backward();
      run_ranks_ok(GetParam().ranks, [&](ProcessGroup& own) {
        const auto group = borrowed(own);
        auto model = seeded(21, [&] { return make(tensor_parallel_layers(group, options())); });
        expect_same_tensors(full_state_dict(*model, own), initial, expect_equal);
        model->to(type);
        const at::Tensor logits = forward(model);
        const bool is_whole = options().gather_logits;
        expect_close(is_whole ? logits : gather_from_region(group, logits, -1), wanted, "logits");
        const at::Tensor loss = is_whole ? models::next_token_loss(logits, targets)
                                         : vocab_parallel_cross_entropy(group, logits, targets);
        expect_close(loss, wanted_loss, "loss");
        loss.backward();
        expect_same_tensors(gradients_of(*model, own), gradients_of(*dense), expect_close);
      });
    }
  }
};

TEST_P(ParallelModelsTest, gpt_is_the_dense_one) {
  for (const bool is_modern : {false, true}) {
    compare([&](const models::Layers& layers) { return Gpt(small_gpt(is_modern), layers); },
            [](Gpt& model) { return model->forward(tokens(2, 8, 7)); });
  }
}

TEST_P(ParallelModelsTest, bert_is_the_dense_one) {
  compare([](const models::Layers& layers) { return Bert(small_bert(), layers); },
          [](Bert& model) {
            const at::Tensor is_token = torch::ones({2, 8}, torch::kBool);
            is_token[1].narrow(0, 6, 2).fill_(false);
            return model->forward(tokens(2, 8, 7), tokens(2, 8, 3).remainder(2), is_token);
          });
}

INSTANTIATE_TEST_SUITE_P(Ways, ParallelModelsTest,
                         testing::Values(Way{1, false, true}, Way{2, false, true},
                                         Way{4, false, false}, Way{1, true, false},
                                         Way{2, true, false}, Way{4, true, true}));

TEST(ParallelModels, whole_weights_are_loaded_and_gathered_in_bits) {
  Gpt dense = seeded(1, [] { return Gpt(small_gpt(true)); });
  const StateDict weights = copies_of(*dense);
  run_ranks_ok(2, [&](ProcessGroup& own) {
    Gpt model =
        seeded(2, [&] { return Gpt(small_gpt(true), tensor_parallel_layers(borrowed(own))); });
    EXPECT_EQ(model->named_parameters().keys(), dense->named_parameters().keys());
    load_full_state_dict(*model, weights);
    expect_same_tensors(full_state_dict(*model, own), weights, expect_equal);

    StateDict wrong = weights;
    wrong.erase("ln_f.bias");
    wrong["h.0.attn.c_attn.weight"] = torch::ones({1, 2});
    wrong["more"] = torch::ones({3});
    expect_error(
        ErrorCode::kInvalid,
        {"ln_f.bias: [32] here, not given", "h.0.attn.c_attn.weight: [64, 32] here, given [1, 2]",
         "more: given [3], not here"},
        [&] { load_full_state_dict(*model, wrong); });
    expect_same_tensors(full_state_dict(*model, own), weights, expect_equal);

    const auto alone = own.split(own.rank(), 0);
    expect_error(ErrorCode::kInvalid, {"of 2, which are not the ranks of group"},
                 [&] { full_state_dict(*model, *alone); });
  });
}

TEST(ParallelModels, ranks_of_one_host_have_one_copy_of_whole_weights) {
  const Gpt dense = seeded(1, [] { return Gpt(small_gpt(true)); });
  for (const auto transport : {TransportKind::kAuto, TransportKind::kTcp}) {
    const auto compare = [&](ProcessGroup& own) {
      Gpt model =
          seeded(1, [&] { return Gpt(small_gpt(true), tensor_parallel_layers(borrowed(own))); });
      const StateDict whole = full_state_dict(*model, own);
      expect_same_tensors(whole, copies_of(*dense), expect_equal);
      for (const auto& [name, tensor] : whole)
        EXPECT_EQ(OneCopy::holds(tensor.data_ptr()), transport == TransportKind::kAuto) << name;
    };
    run_ranks_ok(2, compare, {.transport = transport});
  }
}

TEST(ParallelModels, generation_and_clones_are_the_dense_models) {
  GptOptions options = small_gpt(true);
  options.dropout = 0.5;
  Gpt dense = seeded(4, [&] { return Gpt(options); });
  const at::Tensor prompt = tokens(3, 4, 5);
  const at::Tensor wanted = generate(dense, prompt, {.tokens = 8, .temperature = 0});
  run_ranks_ok(2, [&](ProcessGroup& own) {
    Gpt model = seeded(4, [&] { return Gpt(options, tensor_parallel_layers(borrowed(own))); });
    EXPECT_TRUE(torch::equal(generate(model, prompt, {.tokens = 8, .temperature = 0}), wanted));
    model->eval();
    const auto copy = std::dynamic_pointer_cast<models::GptImpl>(model->clone());
    copy->eval();
    EXPECT_TRUE(torch::equal(copy->forward(prompt), model->forward(prompt)));
  });
}

// Each call either gives the tokens of the dense model, or is an error on every rank.
TEST(ParallelModels, generation_takes_the_same_call_on_every_rank_and_whole_logits) {
  using Options = models::GenerateOptions;
  const GptOptions options = small_gpt(false);
  Gpt dense = seeded(4, [&] { return Gpt(options); });
  const at::Tensor prompt = tokens(3, 4, 5);
  const Options usual{.tokens = 6, .seed = 2};
  struct Case {
    std::string name;
    at::Tensor prompt_of_rank_1;
    Options of_rank_1;
    bool gathers_logits = true;
    std::vector<std::string> words = {"ranks of a tensor-parallel model", "rank 0: generate",
                                      "rank 1: generate"};  // the error; empty: none
  };
  const std::vector<Case> cases = {
      {"alike", prompt, usual, true, {}},
      {"another seed", prompt, {.tokens = 6, .seed = 3}},
      {"another prompt", tokens(3, 4, 6), usual},
      {"another length", tokens(3, 5, 5), usual},
      {"fewer sequences", tokens(2, 4, 5), usual},
      {"more tokens", prompt, {.tokens = 7, .seed = 2}},
      {"another temperature", prompt, {.tokens = 6, .temperature = 0.5, .seed = 2}},
      {"another top_k", prompt, {.tokens = 6, .top_k = 3, .seed = 2}},
      {"another end", prompt, {.tokens = 6, .end = 1, .seed = 2}},
      {"parts of logits",
       prompt,
       usual,
       false,
       {"12 logits for a vocabulary of 24", "gather_logits"}},
  };
  const at::Tensor wanted = generate(dense, prompt, usual);
  for (const Case& one : cases) {
    SCOPED_TRACE(one.name);
    run_ranks_ok(2, [&](ProcessGroup& own) {
      Gpt model = seeded(4, [&] {
        return Gpt(options,
                   tensor_parallel_layers(borrowed(own), {.gather_logits = one.gathers_logits}));
      });
      const auto make = [&] {
        const bool is_first = own.rank() == 0;
        return generate(model, is_first ? prompt : one.prompt_of_rank_1,
                        is_first ? usual : one.of_rank_1);
      };
      if (one.words.empty()) {
        EXPECT_TRUE(torch::equal(make(), wanted));
      } else {
        expect_error(ErrorCode::kInvalid, one.words, make);
      }
    });
  }
}

// If ranks dropped different elements of replicated activations, their logits would differ.
TEST(ParallelModels, dropout_leaves_all_ranks_with_the_same_logits_and_repeats_itself) {
  GptOptions options = small_gpt(false);
  options.dropout = 0.3;
  for (const bool sequence_parallel : {false, true}) {
    run_ranks_ok(2, [&](ProcessGroup& own) {
      Gpt model = seeded(4, [&] {
        return Gpt(options,
                   tensor_parallel_layers(borrowed(own), {.sequence_parallel = sequence_parallel}));
      });
      const auto run = [&](std::uint64_t seed) {
        seed_rank(seed);
        return model->forward(tokens(2, 8, 7)).detach();
      };
      const at::Tensor logits = run(5);
      EXPECT_TRUE(torch::equal(run(5), logits));
      EXPECT_FALSE(torch::equal(run(6), logits));
      const at::Tensor sum = reduce_from_region(borrowed(own), logits);
      EXPECT_TRUE(torch::equal(sum, logits + logits));
      // Gradients of replicated parameters are the same on every rank.
      model->forward(tokens(2, 8, 7)).pow(2).sum().backward();
      for (const char* name :
           {"ln_f.weight", "h.0.ln_1.bias", "h.1.attn.c_proj.bias", "wpe.weight"}) {
        const at::Tensor gradient = model->named_parameters()[name].grad();
        EXPECT_TRUE(torch::equal(reduce_from_region(borrowed(own), gradient), gradient + gradient))
            << name;
      }
    });
  }
}

TEST(ParallelModels, sizes_that_do_not_divide_are_named) {
  run_ranks_ok(4, [](ProcessGroup& own) {
    const auto layers = tensor_parallel_layers(borrowed(own));
    GptOptions options = small_gpt(false);
    options.heads = 2;
    expect_error(ErrorCode::kInvalid, {"2 heads do not divide among 4 ranks"},
                 [&] { Gpt(options, layers); });
    options = small_gpt(false);
    options.key_value_heads = 2;
    expect_error(ErrorCode::kInvalid, {"2 heads do not divide among 4 ranks"},
                 [&] { Gpt(options, layers); });
    options = small_gpt(false);
    options.vocabulary = 50257;
    expect_error(ErrorCode::kInvalid,
                 {"50257 tokens of the vocabulary do not divide among 4 ranks"},
                 [&] { Gpt(options, layers); });
    options = small_gpt(false);
    options.feed_forward = 34;
    expect_error(ErrorCode::kInvalid, {"34 features do not divide among 4 ranks"},
                 [&] { Gpt(options, layers); });
    Gpt spread(small_gpt(false),
               tensor_parallel_layers(borrowed(own), {.sequence_parallel = true}));
    expect_error(ErrorCode::kInvalid, {"dimension 1 of a tensor of [2, 6, 32] does not divide"},
                 [&] { spread->forward(tokens(2, 6, 1)); });
  });
  expect_error(ErrorCode::kInvalid, {"is not a member"}, [] { tensor_parallel_layers(nullptr); });
}

}  // namespace
}  // namespace paceline
