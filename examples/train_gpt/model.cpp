#include "examples/train_gpt/model.h"

#include <algorithm>
#include <optional>

#include "paceline/autograd/regions.h"
#include "paceline/models/generate.h"
#include "paceline/tensor/autocast.h"
#include "paceline/tensor/random.h"
#include "paceline/tensor_parallel/dense_weights.h"
#include "paceline/tensor_parallel/layers.h"
#include "paceline/tensor_parallel/vocab_parallel_loss.h"

#include "examples/train_gpt/options.h"

namespace train_gpt {

namespace models = paceline::models;

Model::Model(const Options& options, std::int64_t vocabulary,
             std::shared_ptr<paceline::ProcessGroup> parts)
    : parts_(std::move(parts)),
      precision_(paceline::train::precision_of(options.training.precision)),
      gpt_(models::GptOptions{.vocabulary = vocabulary,
                              .context = options.context,
                              .layers = options.layers,
                              .width = options.width,
                              .heads = options.heads,
                              .dropout = options.dropout},
           layers()) {
  register_module("gpt", gpt_);
  for (auto& parameter : parameters()) parameter.set_data(parameter.to(precision_.parameters));
}

models::Layers Model::layers() {
  if (!is_divided()) return {.dropout = paceline::dropout};
  models::Layers layers = paceline::tensor_parallel_layers(parts_, {.gather_logits = false});
  layers.logits = [this, logits_of_part = layers.logits](
                      const at::Tensor& states, const at::Tensor& weight, const at::Tensor& bias) {
    const at::Tensor part = logits_of_part(states, weight, bias);
    return gathers_logits_ ? paceline::gather_from_region(parts_, part, -1) : part;
  };
  return layers;
}

at::Tensor Model::forward(const at::Tensor& tokens) {
  std::optional<paceline::Autocast> casting;
  if (precision_.autocast) casting.emplace(*precision_.autocast);
  return gpt_->forward(tokens).to(at::kFloat);
}

at::Tensor Model::loss(const at::Tensor& logits, const at::Tensor& next_tokens) const {
  return is_divided() ? paceline::vocab_parallel_cross_entropy(parts_, logits, next_tokens)
                      : models::next_token_loss(logits, next_tokens);
}

at::Tensor Model::generate(const at::Tensor& prompt, std::int64_t tokens, std::uint64_t seed) {
  const std::int64_t room = gpt_->options().context - prompt.size(1);
  gathers_logits_ = true;
  const at::Tensor all = models::generate(
      gpt_, prompt,
      {.tokens = std::min(tokens, room), .temperature = 0.8, .top_k = 40, .seed = seed});
  gathers_logits_ = false;
  return all;
}

paceline::TensorsByName Model::weights() {
  return is_divided() ? paceline::gather_dense(*gpt_, *parts_) : paceline::weights_of(*gpt_);
}

}  // namespace train_gpt
