#include "paceline/training/models/generate.h"

#include <limits>
#include <span>
#include <string>

#include <fmt/format.h>

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include "paceline/engine/core/check.h"
#include "paceline/engine/core/crc32c.h"

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

// Ranks that share the model draw each token for themselves, so everything that decides about it
// must be the same.
std::string describe(const at::Tensor& prompt, const GenerateOptions& options) {
  const at::Tensor tokens = prompt.to(at::kLong).contiguous();
  const auto* const values = tokens.data_ptr<std::int64_t>();
  const auto count = static_cast<std::size_t>(tokens.numel());
  return fmt::format(
      "generate, prompt [{}, {}] (CRC {:08x}), {} tokens, temperature {}, top_k {}, "
      "end {}, seed {}",
      prompt.size(0), prompt.size(1), crc32c(std::as_bytes(std::span(values, count))),
      options.tokens, options.temperature, options.top_k,
      options.end ? fmt::to_string(*options.end) : "none", options.seed);
}

// The logits of the last position, [N, vocabulary].
at::Tensor last_logits(Gpt& model, const at::Tensor& tokens, GptPast& past) {
  const at::Tensor logits = model->forward(tokens, &past).select(1, -1);
  check(logits.size(-1) == model->options().vocabulary,
        "generate: the model returned {} logits for a vocabulary of {}, a part of them on each "
        "rank: build it with gather_logits = true (TensorParallelOptions)",
        logits.size(-1), model->options().vocabulary);
  return logits.to(at::kFloat);
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
  model->require_same(describe(prompt, options));
  const at::NoGradGuard no_grad;
  const Evaluating evaluating(model);
  auto random = at::make_generator<at::CPUGeneratorImpl>(options.seed);
  GptPast past = model->make_past(prompt.size(0), most);
  at::Tensor all = prompt;
  at::Tensor next = prompt;
  at::Tensor has_ended = at::zeros({prompt.size(0), 1}, at::kBool);
  for (std::int64_t i = 0; i < options.tokens; ++i) {
    next = draw(last_logits(model, next, past), options, random);
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
