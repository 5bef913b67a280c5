// GPT and BERT compared with their definitions. beside_python_models.py compares them with Hugging
// Face's transformers.

#include "paceline/training/models/transformer.h"

#include <cmath>

#include <gtest/gtest.h>

#include <torch/torch.h>

#include "paceline/engine/core/error.h"
#include "paceline/training/models/bert.h"
#include "paceline/training/models/gpt.h"
#include "paceline/training/models/hugging_face.h"
#include "paceline/training/models/layer_functions.h"

#include "tests/harness/expect_error.h"
#include "tests/training/models/small_transformers.h"

namespace paceline::models {
namespace {

at::Tensor tokens(std::int64_t sequences, std::int64_t length, std::int64_t vocabulary = 23) {
  return torch::randint(vocabulary, {sequences, length}, torch::kLong);
}

// The definition of attention, one query at a time.
at::Tensor attend(const at::Tensor& queries, const at::Tensor& keys, const at::Tensor& values,
                  bool is_causal) {
  at::Tensor result = torch::zeros_like(queries);
  for (std::int64_t t = 0; t < queries.size(0); ++t) {
    const std::int64_t seen = is_causal ? t + 1 : keys.size(0);
    const at::Tensor scores =
        keys.narrow(0, 0, seen).mv(queries[t]) / std::sqrt(static_cast<double>(keys.size(1)));
    result[t] = values.narrow(0, 0, seen).t().mv(scores.softmax(0));
  }
  return result;
}

class TransformerTest : public testing::Test {
 protected:
  TransformerTest() { torch::manual_seed(1); }
};

// Sizes that are, and sizes that are not, multiples of a vector's length.
TEST_F(TransformerTest, a_few_rows_without_gradients_have_the_products_of_linear) {
  const torch::NoGradGuard no_grad;
  for (const std::int64_t features : {1, 64, 200}) {
    const at::Tensor weight = torch::randn({33, features}), bias = torch::randn({33});
    for (const std::int64_t rows : {0, 1, 3, 8, 9}) {
      const at::Tensor input = torch::randn({1, rows, features});
      const at::Tensor expected = at::linear(input, weight, bias);
      const at::Tensor results = apply_linear(input, weight, bias);
      EXPECT_TRUE(results.allclose(expected, 1e-5, 1e-5)) << features << " features, " << rows;
      EXPECT_EQ(results.sizes(), expected.sizes());
      if (rows > 0 && rows <= 8) {
        EXPECT_TRUE(apply_linear(input[0][0], weight, bias).equal(results[0][0]))
            << "a row's bits depend on the others";
      }
    }
    const at::Tensor doubles = torch::randn({1, features}, torch::kDouble);
    EXPECT_TRUE(apply_linear(doubles, weight.to(torch::kDouble))
                    .equal(at::linear(doubles, weight.to(torch::kDouble))));
  }
}

// Compares results, gradients, and the gradients of the sum of the squared gradients.
TEST_F(TransformerTest, linear_has_the_gradients_of_torchs) {
  const at::Tensor input = torch::randn({2, 10, 24});
  const auto run = [&](auto product, bool has_bias) {
    torch::manual_seed(2);
    const auto x = input.clone().requires_grad_();
    const auto weight = torch::randn({17, 24}).requires_grad_();
    const auto bias = has_bias ? torch::randn({17}).requires_grad_() : at::Tensor();
    std::vector<at::Tensor> leaves = {x, weight};
    if (has_bias) leaves.push_back(bias);
    auto results = torch::autograd::grad({product(x, weight, bias).pow(3).sum()}, leaves, {},
                                         /*retain_graph=*/true, /*create_graph=*/true);
    const at::Tensor squares = results[0].pow(2).sum() + results[1].pow(2).sum();
    for (const auto& second : torch::autograd::grad({squares}, leaves)) results.push_back(second);
    results.push_back(product(x, weight, bias));
    results.push_back(product(x.transpose(0, 1), weight, bias));
    return results;
  };
  for (const bool has_bias : {false, true}) {
    const auto expected =
        run([](const at::Tensor& x, const at::Tensor& weight,
               const at::Tensor& bias) { return torch::nn::functional::linear(x, weight, bias); },
            has_bias);
    const auto results = run(apply_linear, has_bias);
    ASSERT_EQ(results.size(), expected.size());
    for (std::size_t i = 0; i < results.size(); ++i)
      EXPECT_TRUE(results[i].allclose(expected[i], 1e-4, 1e-3)) << "result " << i;
  }
}

// The numbers of parameters of GPT-2 and BERT.
TEST_F(TransformerTest, models_have_as_many_parameters_as_the_published_ones) {
  const auto count = [](const torch::nn::Module& module) {
    std::int64_t sum = 0;
    for (const auto& parameter : module.parameters()) sum += parameter.numel();
    return sum;
  };
  EXPECT_EQ(count(*Gpt()), 124'439'808);
  // BertForMaskedLM has 109,514,298 parameters.
  EXPECT_EQ(count(*Bert()), 109'514'298);
}

TEST_F(TransformerTest, attention_is_its_definition) {
  for (const bool is_causal : {true, false}) {
    for (const std::int64_t groups : {4, 2, 1}) {
      Attention attention(AttentionOptions{.width = 24,
                                           .heads = 4,
                                           .key_value_heads = groups,
                                           .is_causal = is_causal,
                                           .dropout = 0});
      attention->to(torch::kDouble);
      const at::Tensor states = torch::randn({2, 5, 24}, torch::kDouble);
      const auto weights = attention->named_parameters();
      const at::Tensor all =
          torch::linear(states, weights["c_attn.weight"], weights["c_attn.bias"]);
      at::Tensor joined = torch::zeros({2, 5, 24}, torch::kDouble);
      for (std::int64_t n = 0; n < 2; ++n) {
        for (std::int64_t head = 0; head < 4; ++head) {
          const auto part = [&](std::int64_t number) { return all[n].narrow(1, 6 * number, 6); };
          const std::int64_t group = head / (4 / groups);
          joined[n].narrow(1, 6 * head, 6) =
              attend(part(head), part(4 + group), part(4 + groups + group), is_causal);
        }
      }
      const at::Tensor wanted =
          torch::linear(joined, weights["c_proj.weight"], weights["c_proj.bias"]);
      EXPECT_TRUE(torch::allclose(attention->forward(states), wanted, 1e-12, 1e-12));
    }
  }
}

// The scores of rotated queries and keys depend only on their distance, not on their positions.
TEST_F(TransformerTest, rotary_scores_depend_on_distances_alone) {
  Attention attention(AttentionOptions{.width = 8, .heads = 1, .rotary_base = 100, .dropout = 0});
  attention->to(torch::kDouble);
  const at::Tensor states = torch::randn({1, 3, 8}, torch::kDouble);
  KeyValues here = attention->make_past(1, 3);
  // The same states after five masked positions.
  KeyValues there = attention->make_past(1, 8);
  there.keys.zero_();
  there.values.zero_();
  there.count = 5;
  at::Tensor bias = torch::zeros({1, 1, 3, 8}, torch::kDouble);
  bias.narrow(-1, 0, 5).fill_(-std::numeric_limits<double>::infinity());
  const at::Tensor at_5 = attention->forward(states, bias, &there);
  EXPECT_TRUE(torch::allclose(attention->forward(states, {}, &here), at_5, 1e-10, 1e-10));
  const at::Tensor turned_around = attention->forward(states.flip(1), {}, nullptr);
  EXPECT_FALSE(torch::allclose(turned_around.flip(1).select(1, 2), at_5.select(1, 2)));
}

TEST_F(TransformerTest, rotary_positions_take_the_place_of_learned_ones) {
  GptOptions options = small_gpt();
  options.rotary_base = 10'000;
  Gpt model(options);
  EXPECT_EQ(model->named_parameters().find("wpe.weight"), nullptr);
  EXPECT_EQ(model->forward(tokens(1, 4)).sizes(), torch::IntArrayRef({1, 4, 23}));
}

TEST_F(TransformerTest, gpt_sees_no_later_token_and_bert_does) {
  Gpt gpt(small_gpt());
  Bert bert(small_bert());
  const at::Tensor text = tokens(2, 8);
  at::Tensor other = text.clone();
  other.select(1, 7) = (other.select(1, 7) + 1) % 23;
  const auto head = [](const at::Tensor& logits) { return logits.narrow(1, 0, 7); };
  EXPECT_TRUE(torch::equal(head(gpt->forward(text)), head(gpt->forward(other))));
  EXPECT_FALSE(torch::allclose(head(bert->forward(text)), head(bert->forward(other))));
}

TEST_F(TransformerTest, bert_does_not_see_padding_and_sees_segments) {
  Bert model(small_bert());
  const at::Tensor text = tokens(1, 6);
  const at::Tensor padded = torch::cat({text, tokens(1, 3)}, 1);
  const at::Tensor is_token = torch::arange(9).unsqueeze(0) < 6;
  EXPECT_TRUE(torch::allclose(model->forward(padded, {}, is_token).narrow(1, 0, 6),
                              model->forward(text), 1e-4, 1e-5));
  EXPECT_FALSE(torch::allclose(model->forward(text, torch::ones_like(text)), model->forward(text)));
}

TEST_F(TransformerTest, tokens_one_by_one_give_the_logits_of_all_at_once) {
  for (const double rotary_base : {0.0, 10'000.0}) {
    GptOptions options = small_gpt();
    options.rotary_base = rotary_base;
    options.key_value_heads = 2;
    Gpt model(options);
    model->to(torch::kDouble);
    const at::Tensor text = tokens(3, 9);
    KeyValueCache past = model->make_past(3, 9);
    const at::NoGradGuard no_grad;
    std::vector<at::Tensor> parts{model->forward(text.narrow(1, 0, 4), &past)};
    for (std::int64_t t = 4; t < 9; ++t)
      parts.push_back(model->forward(text.narrow(1, t, 1), &past));
    EXPECT_TRUE(torch::allclose(torch::cat(parts, 1), model->forward(text), 1e-10, 1e-10));
    EXPECT_EQ(past.count(), 9);
    expect_error(ErrorCode::kInvalid, {"no room", "9"},
                 [&] { model->forward(text.narrow(1, 0, 1), &past); });
  }
}

TEST_F(TransformerTest, gpt_learns_a_text) {
  Gpt model(small_gpt());
  torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(1e-2));
  const at::Tensor text = torch::arange(16).remainder(5).unsqueeze(0);
  const auto loss = [&] {
    return next_token_loss(model->forward(text.narrow(1, 0, 15)), text.narrow(1, 1, 15));
  };
  EXPECT_NEAR(loss().item<double>(), std::log(23.0), 0.2);
  for (int step = 0; step < 60; ++step) {
    optimizer.zero_grad();
    loss().backward();
    optimizer.step();
  }
  EXPECT_LT(loss().item<double>(), 0.1);
  const at::Tensor made = generate(model, text.narrow(1, 0, 6), {.tokens = 8, .temperature = 0});
  EXPECT_TRUE(torch::equal(made, text.narrow(1, 0, 14)));
}

TEST_F(TransformerTest, the_embedding_gets_the_gradients_of_both_its_ends) {
  Gpt model(small_gpt());
  model->to(torch::kDouble);
  const at::Tensor text = tokens(1, 5), next = tokens(1, 5);
  next_token_loss(model->forward(text), next).backward();
  at::Tensor weight = model->named_parameters()["wte.weight"];
  const double gradient = weight.grad()[3][4].item<double>();
  const auto loss_with = [&](double more) {
    const at::NoGradGuard no_grad;
    weight[3][4] += more;
    const double loss = next_token_loss(model->forward(text), next).item<double>();
    weight[3][4] -= more;
    return loss;
  };
  EXPECT_NEAR((loss_with(1e-5) - loss_with(-1e-5)) / 2e-5, gradient, 1e-8);
}

TEST_F(TransformerTest, a_clone_is_a_model_of_its_own) {
  Gpt model(small_gpt());
  const auto copy = std::dynamic_pointer_cast<GptImpl>(model->clone());
  const at::Tensor text = tokens(1, 5);
  const at::Tensor before = model->forward(text);
  EXPECT_TRUE(torch::equal(copy->forward(text), before));
  {
    const at::NoGradGuard no_grad;
    for (auto& parameter : copy->parameters()) parameter.zero_();
  }
  EXPECT_TRUE(torch::equal(model->forward(text), before));
}

TEST_F(TransformerTest, dropout_is_that_of_the_layers_and_of_training) {
  int calls = 0;
  Layers layers;
  layers.dropout = [&](const at::Tensor& input, double p, bool is_training) {
    ++calls;
    EXPECT_EQ(p, 0.25);
    return Layers::plain_dropout(input, p, is_training);
  };
  GptOptions options = small_gpt();
  options.dropout = 0.25;
  Gpt model(options, layers);
  const at::Tensor text = tokens(1, 5);
  EXPECT_FALSE(torch::equal(model->forward(text), model->forward(text)));
  EXPECT_EQ(calls, 2 * (1 + 3 * 2));
  model->eval();
  EXPECT_TRUE(torch::equal(model->forward(text), model->forward(text)));
}

TEST_F(TransformerTest, generation_repeats_itself_and_keeps_to_its_options) {
  GptOptions options = small_gpt();
  options.dropout = 0.5;
  Gpt model(options);
  const at::Tensor prompt = tokens(3, 4);
  const auto draw = [&](std::uint64_t seed) {
    return generate(model, prompt, {.tokens = 12, .seed = seed});
  };
  EXPECT_TRUE(torch::equal(draw(1), draw(1)));
  EXPECT_FALSE(torch::equal(draw(1), draw(2)));
  EXPECT_TRUE(torch::equal(draw(1).narrow(1, 0, 4), prompt));
  EXPECT_TRUE(torch::equal(generate(model, prompt, {.tokens = 12, .top_k = 1, .seed = 1}),
                           generate(model, prompt, {.tokens = 12, .temperature = 0})));
  EXPECT_TRUE(model->is_training());
  EXPECT_TRUE(torch::equal(generate(model, prompt, {.tokens = 0}), prompt));
}

TEST_F(TransformerTest, a_sequence_that_has_ended_stays_ended) {
  Gpt model(small_gpt());
  const at::Tensor prompt = tokens(4, 3);
  const at::Tensor free = generate(model, prompt, {.tokens = 13, .seed = 3});
  const std::int64_t end = free[0][5].item<std::int64_t>();
  const at::Tensor made = generate(model, prompt, {.tokens = 13, .end = end, .seed = 3});
  for (std::int64_t n = 0; n < 4; ++n) {
    bool has_ended = false;
    for (std::int64_t t = 3; t < made.size(1); ++t) {
      const auto token = made[n][t].item<std::int64_t>();
      EXPECT_TRUE(!has_ended || token == end) << token;
      has_ended = has_ended || token == end;
    }
  }
  EXPECT_EQ(made[0][5].item<std::int64_t>(), end);
}

TEST_F(TransformerTest, wrong_sizes_are_refused) {
  const auto refused = [](const std::vector<std::string>& words, GptOptions options) {
    expect_error(ErrorCode::kInvalid, words, [&] { Gpt model(options); });
  };
  GptOptions options = small_gpt();
  options.heads = 5;
  refused({"5 heads", "24"}, options);
  options = small_gpt();
  options.key_value_heads = 3;
  refused({"3 heads of keys", "4 heads"}, options);
  options = small_gpt();
  options.width = 12;
  options.rotary_base = 100;
  refused({"rotary", "3"}, options);
  options = small_gpt();
  options.layers = 0;
  refused({"positive", "0"}, options);
  Gpt model(small_gpt());
  Bert bert(small_bert());
  expect_error(ErrorCode::kInvalid, {"17", "16"}, [&] { model->forward(tokens(1, 17)); });
  expect_error(ErrorCode::kInvalid, {"17", "16"}, [&] { bert->forward(tokens(1, 17)); });
  expect_error(ErrorCode::kInvalid, {"generate", "10", "7", "16"},
               [&] { generate(model, tokens(1, 10), {.tokens = 7}); });
  expect_error(ErrorCode::kInvalid, {"generate", "empty"}, [&] {
    generate(model, torch::zeros({1, 0}, torch::kLong));
  });
  expect_error(ErrorCode::kInvalid, {"generate", "-1"},
               [&] { generate(model, tokens(1, 2), {.temperature = -1}); });
}

TEST_F(TransformerTest, weights_go_to_hugging_faces_names_and_back) {
  Gpt model(small_gpt());
  const StateDict weights = to_hugging_face(model);
  EXPECT_EQ(weights.at("transformer.h.1.mlp.c_fc.weight").sizes(), torch::IntArrayRef({24, 96}));
  EXPECT_EQ(weights.at("transformer.h.0.attn.c_attn.bias").sizes(), torch::IntArrayRef({72}));
  EXPECT_EQ(weights.size(), 4U + 2 * 12);
  Gpt other(small_gpt());
  load_hugging_face(other, weights);
  const at::Tensor text = tokens(1, 5);
  EXPECT_TRUE(torch::equal(other->forward(text), model->forward(text)));

  Bert bert(small_bert());
  const StateDict bert_weights = to_hugging_face(bert);
  EXPECT_EQ(bert_weights.at("bert.encoder.layer.1.attention.self.key.weight").sizes(),
            torch::IntArrayRef({24, 24}));
  Bert other_bert(small_bert());
  load_hugging_face(other_bert, bert_weights);
  EXPECT_TRUE(torch::equal(other_bert->forward(text), bert->forward(text)));
}

TEST_F(TransformerTest, what_files_have_besides_is_no_trouble) {
  Gpt model(small_gpt());
  StateDict weights;
  for (const auto& [name, tensor] : to_hugging_face(model))
    weights.emplace(name.substr(std::string("transformer.").size()), tensor);
  weights.emplace("h.0.attn.bias", torch::ones({1, 1, 16, 16}).tril());
  weights.emplace("lm_head.weight", model->named_parameters()["wte.weight"]);
  Gpt other(small_gpt());
  load_hugging_face(other, weights);
  const at::Tensor text = tokens(1, 5);
  EXPECT_TRUE(torch::equal(other->forward(text), model->forward(text)));
}

TEST_F(TransformerTest, another_models_weights_are_refused_and_nothing_is_loaded) {
  Gpt model(small_gpt());
  const at::Tensor text = tokens(1, 5);
  const at::Tensor before = model->forward(text);
  GptOptions options = small_gpt();
  options.layers = 3;
  options.vocabulary = 24;
  Gpt larger(options);
  StateDict weights = to_hugging_face(larger);
  weights.erase("transformer.ln_f.bias");
  expect_error(ErrorCode::kInvalid,
               {"missing: transformer.ln_f.bias", "transformer.wte.weight is [24, 24]",
                "not a weight of this model: transformer.h.2.ln_1.weight"},
               [&] { load_hugging_face(model, weights); });
  EXPECT_TRUE(torch::equal(model->forward(text), before));
  options = small_gpt();
  options.rotary_base = 100;
  Gpt rotary(options);
  expect_error(ErrorCode::kUnsupported, {"rotary"}, [&] { to_hugging_face(rotary); });
}

}  // namespace
}  // namespace paceline::models
