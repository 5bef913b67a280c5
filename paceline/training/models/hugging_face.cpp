#include "paceline/training/models/hugging_face.h"

#include <functional>
#include <optional>
#include <set>
#include <vector>

#include <fmt/ranges.h>

#include <ATen/ATen.h>

#include "paceline/engine/core/check.h"
#include "paceline/engine/core/error_text.h"
#include "paceline/engine/core/log.h"

namespace paceline::models {
namespace {

// Where a weight is stored in a file: under one name, or under several names, in parts that follow
// each other along dimension 0.
struct Place {
  std::vector<std::string> names;
  bool is_transposed = false;
};

// The layout of a kind of model in a file.
struct FileLayout {
  const char* what;    // name of the model in messages
  const char* prefix;  // a file may leave it out
  // Returns where the parameter of this name is stored. The result has no names if the model has no
  // such parameter.
  Place (*place)(std::string parameter);
  // Parameters that have a row for each token of the vocabulary.
  std::set<std::string> by_token;
  // Copies of tied tensors that a file may contain: from the copy's name to the tied tensor's.
  std::map<std::string, std::string> ties;
  // Prefixes of the names of a head that the model does not have.
  std::vector<std::string> other_heads;
};

bool replace_prefix(std::string& name, const std::string& prefix, const std::string& by) {
  if (!name.starts_with(prefix)) return false;
  name.replace(0, prefix.size(), by);
  return true;
}

// In GPT-2's files the weights of linear layers are transposed.
Place place_in_gpt2(std::string name) {
  const bool is_known = name.starts_with("h.") || name.starts_with("wte.") ||
                        name.starts_with("wpe.") || name.starts_with("ln_f.");
  if (!is_known) return {};
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
  using Renamings = std::vector<std::pair<std::string, std::string>>;
  static const auto& outside_names =
      *new Renamings{{"words.", "bert.embeddings.word_embeddings."},
                     {"positions.", "bert.embeddings.position_embeddings."},
                     {"segments.", "bert.embeddings.token_type_embeddings."},
                     {"embedding_norm.", "bert.embeddings.LayerNorm."},
                     {"head_bias", "cls.predictions.bias"},
                     {"head_norm.", "cls.predictions.transform.LayerNorm."},
                     {"head.", "cls.predictions.transform.dense."}};
  static const auto& inside_names = *new Renamings{{"attn.c_proj.", "attention.output.dense."},
                                                   {"ln_1.", "attention.output.LayerNorm."},
                                                   {"c_fc.", "intermediate.dense."},
                                                   {"c_proj.", "output.dense."},
                                                   {"ln_2.", "output.LayerNorm."}};
  for (const auto& [prefix, by] : outside_names) {
    if (replace_prefix(name, prefix, by)) return {{name}};
  }
  if (!name.starts_with("blocks.")) return {};
  const std::size_t number = std::string("blocks.").size();
  const std::size_t inside = name.find('.', number) + 1;
  const std::string layer = "bert.encoder.layer." + name.substr(number, inside - number);
  name.erase(0, inside);
  if (replace_prefix(name, "attn.c_attn.", "")) {
    const std::string self = layer + "attention.self.";
    return {{self + "query." + name, self + "key." + name, self + "value." + name}};
  }
  for (const auto& [prefix, by] : inside_names) {
    if (replace_prefix(name, prefix, by)) return {{layer + name}};
  }
  return {};
}

const FileLayout& gpt2() {
  static const auto& layout =
      *new FileLayout{.what = "gpt",
                      .prefix = "transformer.",
                      .place = place_in_gpt2,
                      .by_token = {"wte.weight"},
                      .ties = {{"lm_head.weight", "transformer.wte.weight"}},
                      .other_heads = {}};
  return layout;
}

const FileLayout& bert() {
  static const auto& layout = *new FileLayout{
      .what = "bert",
      .prefix = "bert.",
      .place = place_in_bert,
      .by_token = {"words.weight", "head_bias"},
      .ties = {{"cls.predictions.decoder.weight", "bert.embeddings.word_embeddings.weight"},
               {"cls.predictions.decoder.bias", "cls.predictions.bias"}},
      .other_heads = {"cls.seq_relationship.", "bert.pooler.", "pooler."}};
  return layout;
}

std::string shape_of(const at::Tensor& tensor) { return c10::str(tensor.sizes()); }

// A file may omit the prefix, and may have the norms' parameters under older names.
std::vector<std::string> names_in_files(const FileLayout& layout, const std::string& name) {
  std::vector<std::string> names{name};
  const std::string prefix = layout.prefix;
  if (name.starts_with(prefix)) names.push_back(name.substr(prefix.size()));
  for (std::size_t i = 0, count = names.size(); i < count; ++i) {
    std::string old = names[i];
    const std::size_t norm = old.find("LayerNorm.");
    if (norm == std::string::npos) continue;
    old.replace(norm, std::string::npos,
                old.ends_with("weight") ? "LayerNorm.gamma" : "LayerNorm.beta");
    names.push_back(old);
  }
  for (const auto& [copy, tied] : layout.ties) {
    if (tied == name) names.push_back(copy);
  }
  return names;
}

// Returns whether the tensor has the right values, if it is one of the constants that old versions
// of transformers saved; nullopt for any other tensor.
std::optional<bool> is_right_constant(const std::string& name, const at::Tensor& tensor) {
  const at::Tensor values = tensor.detach().to(at::kDouble);
  if (name.ends_with(".attn.bias")) {  // the causal mask
    if (values.dim() < 2 || values.size(-1) != values.size(-2)) return false;
    const at::Tensor mask = at::ones({values.size(-2), values.size(-1)}, at::kDouble).tril();
    return at::equal(values, mask.expand(values.sizes()));
  }
  if (name.ends_with(".attn.masked_bias"))  // the score of masked positions
    return values.numel() == 1 && values.item<double>() <= -1e4;
  if (name.ends_with("position_ids"))
    return at::equal(values.flatten(), at::arange(values.numel(), at::kDouble));
  return {};
}

bool have_same_values(const at::Tensor& a, const at::Tensor& b) {
  if (a.scalar_type() == b.scalar_type()) return at::equal(a, b);
  return at::equal(a.to(at::kDouble), b.to(at::kDouble));
}

bool belongs_to_other_head(const FileLayout& layout, const std::string& name) {
  for (const std::string& begin : layout.other_heads) {
    if (name.starts_with(begin)) return true;
  }
  return false;
}

// Fills the rows that the file does not have with the mean of its weights: exp of a mean is at most
// the mean of exp, so such a token is never more probable than the file's tokens are on average.
at::Tensor with_mean_rows(const at::Tensor& rows, std::int64_t count) {
  std::vector<std::int64_t> sizes = rows.sizes().vec();
  sizes[0] = count - rows.size(0);
  const at::Tensor mean = rows.to(at::kDouble).mean(0, /*keepdim=*/true).to(rows.scalar_type());
  return at::cat({rows, mean.expand(sizes)});
}

// Checks a file's weights against a model, collects all problems, and loads the weights if there
// are none.
class Loader {
 public:
  Loader(const FileLayout& layout, torch::nn::Module& model, const StateDict& weights,
         std::int64_t vocabulary)
      : layout_(layout), model_(model), weights_(weights), vocabulary_(vocabulary) {}

  void load() {
    for (const auto& parameter : model_.named_parameters())
      take(parameter.key(), parameter.value());
    for (const auto& [name, tensor] : weights_) {
      if (!used_.contains(name)) check_unused(name, tensor);
    }
    check(wrong_.empty(), "{}: these weights belong to another model:{}{}", layout_.what,
          first_lines(wrong_),
          !wrong_.empty() && has_own_names()
              ? "\n  these are the model's own names and shapes: load them with load_weights()"
              : "");
    const at::NoGradGuard no_grad;
    for (const auto& [parameter, weight] : copies_) at::Tensor(parameter).copy_(weight);
    if (!left_out_.empty()) {
      log::warning(
          fmt::format("{}: weights of a head that the model does not have are left out: {}",
                      layout_.what, fmt::join(left_out_, ", ")));
    }
  }

 private:
  // Returns the sizes of each part of the parameter in a file.
  std::vector<std::int64_t> sizes_in_file(const std::string& key, const at::Tensor& parameter,
                                          const Place& place) const {
    std::vector<std::int64_t> sizes = parameter.sizes().vec();
    if (layout_.by_token.contains(key)) sizes[0] = vocabulary_;
    sizes[0] /= static_cast<std::int64_t>(place.names.size());
    if (place.is_transposed) std::swap(sizes[0], sizes[1]);
    return sizes;
  }

  void take(const std::string& key, const at::Tensor& parameter) {
    const Place place = layout_.place(key);
    check(!place.names.empty(), "{}: the file format has no name for the model's \"{}\"",
          layout_.what, key);
    const std::vector<std::int64_t> wanted = sizes_in_file(key, parameter, place);
    std::vector<at::Tensor> parts;
    for (const std::string& name : place.names) {
      const auto* const found = find(name);
      if (found == nullptr) {
        wrong_ += "\n  missing: " + name;
        continue;
      }
      const auto& [found_as, part] = *found;
      if (part.sizes() != at::IntArrayRef(wanted)) {
        wrong_ += fmt::format("\n  {} is {} where {} is wanted", found_as, shape_of(part),
                              c10::str(at::IntArrayRef(wanted)));
      } else if (!part.is_floating_point()) {
        wrong_ += fmt::format("\n  {} has elements of type {}; only floating point can be loaded",
                              found_as, c10::toString(part.scalar_type()));
      } else {
        parts.push_back(place.is_transposed ? part.t() : part);
      }
    }
    if (parts.size() < place.names.size()) return;
    at::Tensor whole = parts.size() == 1 ? parts.front() : at::cat(parts);
    if (whole.size(0) < parameter.size(0)) whole = with_mean_rows(whole, parameter.size(0));
    copies_.emplace_back(parameter, whole);
  }

  // Returns the file's tensor of this name, or of another name that files use for the same tensor.
  const StateDict::value_type* find(const std::string& name) {
    for (const std::string& candidate : names_in_files(layout_, name)) {
      const auto found = weights_.find(candidate);
      if (found == weights_.end()) continue;
      used_.insert(candidate);
      return &*found;
    }
    return nullptr;
  }

  void check_unused(const std::string& name, const at::Tensor& tensor) {
    if (const auto tie = layout_.ties.find(name); tie != layout_.ties.end()) {
      const auto& [tied_as, tied] = *find(tie->second);
      if (!have_same_values(tensor, tied)) {
        wrong_ += fmt::format(
            "\n  {} differs from {}, to which the model ties it: weights that are not tied cannot "
            "be loaded",
            name, tied_as);
      }
    } else if (belongs_to_other_head(layout_, name)) {
      left_out_.push_back(name);
    } else if (const auto is_right = is_right_constant(name, tensor); !is_right) {
      wrong_ += "\n  not a weight of this model: " + name;
    } else if (!*is_right) {
      wrong_ += fmt::format("\n  {} does not have the values that the model computes", name);
    }
  }

  bool has_own_names() const {
    const auto own = model_.named_parameters();
    for (const auto& [name, tensor] : weights_) {
      const at::Tensor* const parameter = own.find(name);
      if (parameter == nullptr || parameter->sizes() != tensor.sizes()) return false;
    }
    return !weights_.empty();
  }

  const FileLayout& layout_;
  torch::nn::Module& model_;
  const StateDict& weights_;
  const std::int64_t vocabulary_;  // tokens of the file
  std::set<std::string> used_;
  std::vector<std::string> left_out_;
  std::vector<std::pair<at::Tensor, at::Tensor>> copies_;  // the second is copied to the first
  std::string wrong_;
};

std::int64_t vocabulary_of(const char* what, std::int64_t model, std::int64_t in_file) {
  check(in_file >= 0 && in_file <= model,
        "{}: a vocabulary of {} tokens in the file and of {} in the model; the model's must be at "
        "least as large",
        what, in_file, model);
  return in_file == 0 ? model : in_file;
}

StateDict named(const FileLayout& layout, const StateDict& weights, std::int64_t vocabulary) {
  StateDict in_file;
  for (const auto& [key, tensor] : weights) {
    const Place place = layout.place(key);
    check(!place.names.empty(), "{}: the model has no weight \"{}\"", layout.what, key);
    at::Tensor whole = tensor.detach();
    if (layout.by_token.contains(key)) whole = whole.narrow(0, 0, vocabulary);
    const auto parts = whole.chunk(static_cast<std::int64_t>(place.names.size()));
    for (std::size_t i = 0; i < parts.size(); ++i) {
      const at::Tensor part = place.is_transposed ? parts[i].t() : parts[i];
      in_file.emplace(place.names[i], part.clone(at::MemoryFormat::Contiguous));
    }
  }
  return in_file;
}

void require_gpt2(const GptOptions& options) {
  if (options.rotary_base != 0 ||
      (options.key_value_heads != 0 && options.key_value_heads != options.heads)) {
    fail(ErrorCode::kUnsupported,
         "gpt: GPT-2 has neither rotary positions nor fewer heads of keys and values");
  }
}

}  // namespace

void load_hugging_face(Gpt& model, const StateDict& weights, std::int64_t vocabulary) {
  require_gpt2(model->options());
  Loader(gpt2(), *model, weights, vocabulary_of("gpt", model->options().vocabulary, vocabulary))
      .load();
}

void load_hugging_face(Bert& model, const StateDict& weights, std::int64_t vocabulary) {
  Loader(bert(), *model, weights, vocabulary_of("bert", model->options().vocabulary, vocabulary))
      .load();
}

StateDict to_hugging_face(const GptOptions& model, const StateDict& weights,
                          std::int64_t vocabulary) {
  require_gpt2(model);
  return named(gpt2(), weights, vocabulary_of("gpt", model.vocabulary, vocabulary));
}

StateDict to_hugging_face(const BertOptions& model, const StateDict& weights,
                          std::int64_t vocabulary) {
  return named(bert(), weights, vocabulary_of("bert", model.vocabulary, vocabulary));
}

StateDict to_hugging_face(Gpt& model, std::int64_t vocabulary) {
  return to_hugging_face(model->options(), weights_of(*model), vocabulary);
}

StateDict to_hugging_face(Bert& model, std::int64_t vocabulary) {
  return to_hugging_face(model->options(), weights_of(*model), vocabulary);
}

}  // namespace paceline::models
