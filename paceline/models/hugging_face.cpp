#include "paceline/models/hugging_face.h"

#include <functional>
#include <vector>

#include <ATen/ATen.h>

#include "paceline/core/check.h"

namespace paceline::models {
namespace {

// A weight as a file has it: under one name, or in parts that follow each other along dimension 0.
struct Place {
  std::vector<std::string> names;
  bool is_transposed = false;
};

// Where the parameter of this name lies in the file; no names: nowhere.
using Find = std::function<Place(const std::string& parameter)>;

bool replace_prefix(std::string& name, const std::string& prefix, const std::string& by) {
  if (!name.starts_with(prefix)) return false;
  name.replace(0, prefix.size(), by);
  return true;
}

// GPT-2's linear layers have their weights the other way round.
Place place_in_gpt2(std::string name) {
  const bool is_linear = name.find(".attn.c_") != std::string::npos ||
                         name.find(".c_fc.") != std::string::npos ||
                         name.find(".c_proj.") != std::string::npos;
  for (const std::string layer : {".c_fc.", ".c_proj."}) {
    const std::size_t at = name.find(layer);
    if (at != std::string::npos && name.find(".attn.") == std::string::npos)
      name.replace(at, layer.size(), ".mlp" + layer);
  }
  return {{"transformer." + name}, is_linear && name.ends_with("weight")};
}

Place place_in_bert(std::string name) {
  static const std::vector<std::pair<std::string, std::string>> kOutside = {
      {"words.", "bert.embeddings.word_embeddings."},
      {"positions.", "bert.embeddings.position_embeddings."},
      {"segments.", "bert.embeddings.token_type_embeddings."},
      {"embedding_norm.", "bert.embeddings.LayerNorm."},
      {"head_bias", "cls.predictions.bias"},
      {"head_norm.", "cls.predictions.transform.LayerNorm."},
      {"head.", "cls.predictions.transform.dense."}};
  static const std::vector<std::pair<std::string, std::string>> kInside = {
      {"attn.c_proj.", "attention.output.dense."},
      {"ln_1.", "attention.output.LayerNorm."},
      {"c_fc.", "intermediate.dense."},
      {"c_proj.", "output.dense."},
      {"ln_2.", "output.LayerNorm."}};
  for (const auto& [prefix, by] : kOutside) {
    if (replace_prefix(name, prefix, by)) return {{name}};
  }
  const std::size_t number = std::string("blocks.").size();
  const std::size_t inside = name.find('.', number) + 1;
  const std::string layer = "bert.encoder.layer." + name.substr(number, inside - number);
  name.erase(0, inside);
  if (replace_prefix(name, "attn.c_attn.", "")) {
    const std::string self = layer + "attention.self.";
    return {{self + "query." + name, self + "key." + name, self + "value." + name}};
  }
  for (const auto& [prefix, by] : kInside) {
    if (replace_prefix(name, prefix, by)) return {{layer + name}};
  }
  return {};
}

// A file may leave the prefix out, and has the norms' parameters under older names.
const at::Tensor* find_weight(const TensorsByName& weights, const std::string& name,
                              std::string& found_as) {
  std::vector<std::string> names{name};
  for (const std::string prefix : {"transformer.", "bert."}) {
    if (name.starts_with(prefix)) names.push_back(name.substr(prefix.size()));
  }
  for (std::size_t i = 0, count = names.size(); i < count; ++i) {
    std::string old = names[i];
    const std::size_t norm = old.find("LayerNorm.");
    if (norm == std::string::npos) continue;
    old.replace(norm, std::string::npos,
                old.ends_with("weight") ? "LayerNorm.gamma" : "LayerNorm.beta");
    names.push_back(old);
  }
  for (const std::string& candidate : names) {
    const auto found = weights.find(candidate);
    if (found == weights.end()) continue;
    found_as = candidate;
    return &found->second;
  }
  return nullptr;
}

// Masks, position numbers, the tied last layer and BERT's other head, which predicts whether a
// sentence is the next one.
bool is_no_weight(const std::string& name) {
  for (const char* end : {".attn.bias", ".attn.masked_bias", "position_ids", "lm_head.weight",
                          "cls.predictions.decoder.weight", "cls.predictions.decoder.bias"}) {
    if (name.ends_with(end)) return true;
  }
  for (const char* begin : {"cls.seq_relationship.", "bert.pooler.", "pooler."}) {
    if (name.starts_with(begin)) return true;
  }
  return false;
}

std::string shape_of(const at::Tensor& tensor) { return c10::str(tensor.sizes()); }

void load(torch::nn::Module& model, const char* what, const TensorsByName& weights,
          const Find& find) {
  std::map<std::string, bool> is_used;
  for (const auto& [name, tensor] : weights) is_used[name] = is_no_weight(name);
  std::string wrong;
  std::vector<std::pair<at::Tensor, at::Tensor>> copies;
  for (auto& parameter : model.named_parameters()) {
    const Place place = find(parameter.key());
    std::vector<at::Tensor> parts;
    for (const std::string& name : place.names) {
      std::string found_as;
      const at::Tensor* const part = find_weight(weights, name, found_as);
      if (part == nullptr) {
        wrong += "\n  missing: " + name;
        continue;
      }
      is_used[found_as] = true;
      parts.push_back(place.is_transposed ? part->t() : *part);
    }
    if (parts.empty() || parts.size() < place.names.size()) continue;
    const at::Tensor whole = parts.size() == 1 ? parts.front() : at::cat(parts);
    if (whole.sizes() != parameter.value().sizes()) {
      wrong += "\n  " + place.names.front() + " is " + shape_of(whole) + " where " +
               shape_of(parameter.value()) + " is wanted";
    }
    copies.emplace_back(parameter.value(), whole);
  }
  for (const auto& [name, used] : is_used) {
    if (!used) wrong += "\n  no place for: " + name;
  }
  check(wrong.empty(), "{}: these weights are another model's:{}", what, wrong);
  const at::NoGradGuard no_grad;
  for (auto& [parameter, weight] : copies) parameter.copy_(weight);
}

TensorsByName save(torch::nn::Module& model, const Find& find) {
  TensorsByName weights;
  for (const auto& parameter : model.named_parameters()) {
    const Place place = find(parameter.key());
    const auto parts =
        parameter.value().detach().chunk(static_cast<std::int64_t>(place.names.size()));
    for (std::size_t i = 0; i < parts.size(); ++i) {
      const at::Tensor part = place.is_transposed ? parts[i].t() : parts[i];
      weights.emplace(place.names[i], part.clone(at::MemoryFormat::Contiguous));
    }
  }
  return weights;
}

void require_gpt2(const Gpt& model) {
  const GptOptions& options = model->options();
  if (options.rotary_base != 0 ||
      (options.key_value_heads != 0 && options.key_value_heads != options.heads)) {
    fail(ErrorCode::kUnsupported,
         "gpt: GPT-2 has neither rotary positions nor fewer heads of keys and values");
  }
}

}  // namespace

void load_hugging_face(Gpt& model, const TensorsByName& weights) {
  require_gpt2(model);
  load(*model, "gpt", weights, place_in_gpt2);
}

void load_hugging_face(Bert& model, const TensorsByName& weights) {
  load(*model, "bert", weights, place_in_bert);
}

TensorsByName to_hugging_face(Gpt& model) {
  require_gpt2(model);
  return save(*model, place_in_gpt2);
}

TensorsByName to_hugging_face(Bert& model) { return save(*model, place_in_bert); }

}  // namespace paceline::models
