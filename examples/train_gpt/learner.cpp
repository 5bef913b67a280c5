#include "examples/train_gpt/learner.h"

#include <algorithm>

#include "paceline/training/models/gpt.h"
#include "paceline/training/tensor/random.h"
#include "paceline/training/tensor_parallel/tensor_parallel_layers.h"
#include "paceline/training/tensor_parallel/vocab_parallel.h"

namespace train_gpt {

namespace models = paceline::models;

std::unique_ptr<Learner> make_learner(const Options& options, std::int64_t vocabulary,
                                      const paceline::DeviceMesh& mesh) {
  return mesh.size("pp") > 1 ? make_staged_learner(options, vocabulary, mesh)
                             : make_whole_learner(options, vocabulary, mesh);
}

models::GptOptions gpt_options(const Options& options, std::int64_t vocabulary) {
  return {.vocabulary = vocabulary,
          .context = options.context,
          .layers = options.layers,
          .width = options.width,
          .heads = options.heads,
          .dropout = options.dropout};
}

models::Layers layers_for(const std::shared_ptr<paceline::ProcessGroup>& parts) {
  if (parts->world_size() == 1) return {.dropout = paceline::dropout};
  return paceline::tensor_parallel_layers(parts, {.gather_logits = false});
}

at::Tensor loss_of(const std::shared_ptr<paceline::ProcessGroup>& parts, const at::Tensor& logits,
                   const at::Tensor& next_tokens) {
  return parts->world_size() > 1
             ? paceline::vocab_parallel_cross_entropy(parts, logits, next_tokens)
             : models::next_token_loss(logits, next_tokens);
}

at::Tensor sample_from(models::Gpt& gpt, const at::Tensor& prompt, std::int64_t tokens,
                       std::uint64_t seed) {
  const std::int64_t room = gpt->options().context - prompt.size(1);
  return models::generate(
      gpt, prompt,
      {.tokens = std::min(tokens, room), .temperature = 0.8, .top_k = 40, .seed = seed});
}

}  // namespace train_gpt
