#include "paceline/models/generate.h"

#include <limits>

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include "paceline/core/check.h"

namespace paceline::models {
namespace {

// Evaluation mode, as long as it lives.
class Evaluating {
 public:
  explicit Evaluating(Gpt& model) : model_(model), was_training_(model->is_training()) {
    model_->eval();
  }
  ~Evaluating() { model_->train(was_training_); }
  Evaluating(const Evaluating&) = delete;
  Evaluating& operator=(const Evaluating&) = delete;

 private:
  Gpt& model_;
  const bool was_training_;
};

// Of logits [N, vocabulary]: tokens [N, 1].
at::Tensor draw(at::Tensor logits, const GenerateOptions& options, at::Generator& random) {
  if (options.temperature == 0) return logits.argmax(-1, /*keepdim=*/true);
  logits = logits / options.temperature;
  if (options.top_k > 0 && options.top_k < logits.size(-1)) {
    const at::Tensor least =
        std::get<0>(logits.topk(options.top_k)).narrow(-1, options.top_k - 1, 1);
    logits = logits.masked_fill(logits < least, -std::numeric_limits<double>::infinity());
  }
  return at::multinomial(logits.softmax(-1), 1, /*replacement=*/false, random);
}

}  // namespace

at::Tensor generate(Gpt& model, const at::Tensor& prompt, const GenerateOptions& options) {
  check(prompt.dim() == 2 && prompt.numel() > 0, "generate: the prompt is empty or not [N, T]");
  check(options.tokens >= 0 && options.temperature >= 0 && options.top_k >= 0,
        "generate: tokens {}, temperature {} and top_k {} must not be negative", options.tokens,
        options.temperature, options.top_k);
  const std::int64_t most = prompt.size(1) + options.tokens;
  check(most <= model->options().context,
        "generate: {} tokens of the prompt and {} more are more than the context of {}",
        prompt.size(1), options.tokens, model->options().context);
  const at::NoGradGuard no_grad;
  const Evaluating evaluating(model);
  auto random = at::make_generator<at::CPUGeneratorImpl>(options.seed);
  GptPast past = model->make_past(prompt.size(0), most);
  at::Tensor all = prompt;
  at::Tensor next = prompt;
  at::Tensor has_ended = at::zeros({prompt.size(0), 1}, at::kBool);
  for (std::int64_t i = 0; i < options.tokens; ++i) {
    next = draw(model->forward(next, &past).select(1, -1).to(at::kFloat), options, random);
    if (options.end) {
      next = next.masked_fill(has_ended, *options.end);
      has_ended = has_ended.logical_or(next == *options.end);
    }
    all = at::cat({all, next}, 1);
    if (has_ended.all().item<bool>()) break;
  }
  return all;
}

}  // namespace paceline::models
