// The tensors that files of GPT-2's and BERT's weights may contain besides the weights, and those
// that they may lack. gpt2_layout_test.py compares the layout itself with an implementation in
// Python.

#include "paceline/training/models/hugging_face.h"

#include <gtest/gtest.h>

#include <torch/torch.h>

#include "paceline/engine/core/error.h"

#include "tests/harness/expect_error.h"
#include "tests/training/models/small_transformers.h"

namespace paceline::models {
namespace {

at::Tensor causal_mask(std::int64_t size) { return at::ones({1, 1, size, size}).tril(); }

constexpr const char* kTied = "transformer.wte.weight";
constexpr const char* kTiedWords = "bert.embeddings.word_embeddings.weight";

class HuggingFaceTest : public testing::Test {
 protected:
  HuggingFaceTest() { torch::manual_seed(1); }

  // Changes a file with `change`, loads it, and expects the model from which the file was made.
  template <class Model, class Change>
  void expect_loaded(const char* what, const typename Model::ContainedType::Options& options,
                     const Change& change) {
    Model from(options), to(options);
    StateDict weights = to_hugging_face(from);
    change(weights);
    load_hugging_face(to, weights);
    const at::Tensor text = torch::randint(23, {1, 5}, torch::kLong);
    EXPECT_TRUE(torch::equal(from->forward(text), to->forward(text))) << what;
  }

  template <class Model, class Change>
  void expect_refused(const std::vector<std::string>& words,
                      const typename Model::ContainedType::Options& options, const Change& change) {
    Model from(options), to(options);
    StateDict weights = to_hugging_face(from);
    change(weights);
    const at::Tensor before = to->parameters()[0].clone();
    expect_error(ErrorCode::kInvalid, words, [&] { load_hugging_face(to, weights); });
    EXPECT_TRUE(torch::equal(to->parameters()[0], before)) << "something was loaded";
  }
};

TEST_F(HuggingFaceTest, every_tensor_of_a_gpt_2_file_is_used_or_equals_what_it_should_be) {
  const auto loaded = [&](const char* what, auto change) {
    expect_loaded<Gpt>(what, small_gpt(), change);
  };
  loaded("as it was saved", [](StateDict&) {});
  loaded("with a copy of the tied weight",
         [](StateDict& w) { w["lm_head.weight"] = w.at(kTied).clone(); });
  loaded("with only the copy", [](StateDict& w) {
    w["lm_head.weight"] = w.at(kTied);
    w.erase(kTied);
  });
  loaded("with a mask of booleans",
         [](StateDict& w) { w["transformer.h.0.attn.bias"] = causal_mask(16).to(torch::kBool); });
  loaded("with masks of old versions", [](StateDict& w) {
    for (const char* layer : {"transformer.h.0.", "transformer.h.1."}) {
      w[std::string(layer) + "attn.bias"] = causal_mask(16).to(torch::kByte);
      w[std::string(layer) + "attn.masked_bias"] = torch::tensor(-1e4);
    }
  });
  loaded("without the prefix", [](StateDict& w) {
    StateDict all;
    for (const auto& [name, tensor] : w) all[name.substr(12)] = tensor;
    all["lm_head.weight"] = all.at("wte.weight");
    all["h.0.attn.bias"] = causal_mask(16);
    w = all;
  });
  loaded("in float64", [](StateDict& w) {
    for (auto& [name, tensor] : w) tensor = tensor.to(torch::kDouble);
  });
}

TEST_F(HuggingFaceTest, a_tensor_of_a_gpt_2_file_that_the_model_cannot_take_is_named) {
  const auto refused = [&](const std::vector<std::string>& words, auto change) {
    expect_refused<Gpt>(words, small_gpt(), change);
  };
  refused({"lm_head.weight differs from transformer.wte.weight", "not tied"}, [](StateDict& w) {
    w["lm_head.weight"] = torch::randn({23, 24});
  });
  refused({"lm_head.weight differs"}, [](StateDict& w) {  // differs in one element
    w["lm_head.weight"] = w.at(kTied).clone();
    w["lm_head.weight"][22][23] += 1;
  });
  refused({"lm_head.weight differs"}, [](StateDict& w) {
    w["lm_head.weight"] = torch::randn({24, 24});
  });
  refused({"missing: transformer.wte.weight"}, [](StateDict& w) { w.erase(kTied); });
  refused({"lm_head.weight", "is [24, 24] where [23, 24] is wanted"}, [](StateDict& w) {
    w.erase(kTied);
    w["lm_head.weight"] = torch::randn({24, 24});
  });
  refused({"not a weight of this model: lm_head.bias"},
          [](StateDict& w) { w["lm_head.bias"] = torch::zeros({23}); });
  refused({"h.0.attn.bias does not have the values"}, [](StateDict& w) {
    w["transformer.h.0.attn.bias"] = torch::ones({1, 1, 16, 16});
  });
  refused({"h.0.attn.bias does not have the values"},
          [](StateDict& w) { w["transformer.h.0.attn.bias"] = torch::zeros({72}); });
  refused({"h.1.attn.masked_bias does not have"},
          [](StateDict& w) { w["transformer.h.1.attn.masked_bias"] = torch::tensor(0.0); });
  // The error shows the shapes in the file's layout.
  refused({"transformer.h.0.mlp.c_fc.weight is [96, 24] where [24, 96] is wanted"},
          [](StateDict& w) {
            auto& tensor = w.at("transformer.h.0.mlp.c_fc.weight");
            tensor = tensor.t().contiguous();
          });
  refused({"transformer.h.1.attn.c_proj.weight is [3] where [24, 24] is wanted"},
          [](StateDict& w) { w.at("transformer.h.1.attn.c_proj.weight") = torch::ones({3}); });
  refused({"transformer.ln_f.bias has elements of type Char"},
          [](StateDict& w) { w.at("transformer.ln_f.bias") = torch::zeros({24}, torch::kChar); });
  refused(
      {"not a weight of this model: transformer.h.2.ln_1.bias", "missing: transformer.ln_f.weight"},
      [](StateDict& w) {
        w.erase("transformer.ln_f.weight");
        w["transformer.h.2.ln_1.bias"] = torch::zeros({24});
      });
}

TEST_F(HuggingFaceTest, every_tensor_of_a_bert_file_is_used_or_equals_what_it_should_be) {
  const auto loaded = [&](const char* what, auto change) {
    expect_loaded<Bert>(what, small_bert(), change);
  };
  loaded("as it was saved", [](StateDict&) {});
  loaded("with copies of what is tied", [](StateDict& w) {
    w["cls.predictions.decoder.weight"] = w.at(kTiedWords).clone();
    w["cls.predictions.decoder.bias"] = w.at("cls.predictions.bias").clone();
  });
  loaded("with only the copies", [](StateDict& w) {
    w["cls.predictions.decoder.weight"] = w.at(kTiedWords);
    w["cls.predictions.decoder.bias"] = w.at("cls.predictions.bias");
    w.erase(kTiedWords);
    w.erase("cls.predictions.bias");
  });
  loaded("with the head that predicts the next sentence", [](StateDict& w) {
    w["bert.pooler.dense.weight"] = torch::randn({24, 24});
    w["cls.seq_relationship.bias"] = torch::randn({2});
    w["bert.embeddings.position_ids"] = torch::arange(16).unsqueeze(0);
  });
  const auto refused = [&](const std::vector<std::string>& words, auto change) {
    expect_refused<Bert>(words, small_bert(), change);
  };
  refused({"cls.predictions.decoder.weight differs from bert.embeddings.word_embeddings.weight"},
          [](StateDict& w) {
            w["cls.predictions.decoder.weight"] = torch::randn({23, 24});
          });
  refused({"cls.predictions.decoder.bias differs from cls.predictions.bias"},
          [](StateDict& w) { w["cls.predictions.decoder.bias"] = torch::ones({23}); });
  refused({"position_ids does not have"},
          [](StateDict& w) { w["bert.embeddings.position_ids"] = torch::arange(16).flip(0); });
  refused({"not a weight of this model: classifier.weight"}, [](StateDict& w) {
    w["classifier.weight"] = torch::randn({2, 24});
  });
  refused({"attention.self.key.weight is [24, 12] where [24, 24] is wanted"}, [](StateDict& w) {
    w.at("bert.encoder.layer.0.attention.self.key.weight") = torch::randn({24, 12});
  });
}

TEST_F(HuggingFaceTest, a_file_under_the_models_own_names_says_how_to_load_it) {
  Gpt model(small_gpt());
  StateDict own;
  for (const auto& parameter : model->named_parameters()) own[parameter.key()] = parameter.value();
  expect_error(ErrorCode::kInvalid, {"the model's own names and shapes", "load_weights()"},
               [&] { load_hugging_face(model, own); });
  EXPECT_EQ(to_hugging_face(small_gpt(), own).size(), to_hugging_face(model).size());
  own["other"] = torch::ones({1});
  expect_error(ErrorCode::kInvalid, {"no weight \"other\""},
               [&] { to_hugging_face(small_gpt(), own); });
}

// The file has 23 tokens, the larger model 32.
TEST_F(HuggingFaceTest, a_padded_vocabulary_is_filled_when_loading_and_left_out_when_saving) {
  GptOptions padded = small_gpt();
  padded.vocabulary = 32;
  Gpt small(small_gpt()), large(padded);
  const StateDict weights = to_hugging_face(small);
  expect_error(ErrorCode::kInvalid, {"transformer.wte.weight is [23, 24] where [32, 24] is wanted"},
               [&] { load_hugging_face(large, weights); });
  load_hugging_face(large, weights, 23);
  const at::Tensor text = torch::randint(23, {2, 9}, torch::kLong);
  const at::Tensor logits = large->forward(text);
  EXPECT_TRUE(torch::allclose(logits.narrow(-1, 0, 23), small->forward(text), 1e-5, 1e-6));
  const at::Tensor of_padding = logits.softmax(-1).narrow(-1, 23, 9).sum(-1);
  EXPECT_LE(of_padding.max().item<double>(), 9.0 / 32 + 1e-6);
  const StateDict saved = to_hugging_face(large, 23);
  for (const auto& [name, tensor] : weights) EXPECT_TRUE(torch::equal(saved.at(name), tensor));
  expect_error(ErrorCode::kInvalid, {"33", "32"}, [&] { load_hugging_face(large, weights, 33); });

  BertOptions padded_bert = small_bert();
  padded_bert.vocabulary = 32;
  Bert bert(small_bert()), large_bert(padded_bert);
  const StateDict bert_weights = to_hugging_face(bert);
  load_hugging_face(large_bert, bert_weights, 23);
  EXPECT_TRUE(torch::allclose(large_bert->forward(text).narrow(-1, 0, 23), bert->forward(text),
                              1e-5, 1e-6));
  for (const auto& [name, tensor] : to_hugging_face(large_bert, 23))
    EXPECT_TRUE(torch::equal(tensor, bert_weights.at(name))) << name;
}

}  // namespace
}  // namespace paceline::models
