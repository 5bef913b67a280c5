#include "paceline/training/models/gpt.h"

#include <limits>
#include <span>
#include <string>
#include <utility>

#include <fmt/format.h>

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include "paceline/engine/core/bytes.h"
#include "paceline/engine/core/check.h"
#include "paceline/training/models/layer_functions.h"
#include "paceline/training/models/transformer.h"

namespace paceline::models {

KeyValueCache::KeyValueCache(std::vector<KeyValues> layers)
    : layers_(std::make_unique<std::vector<KeyValues>>(std::move(layers))) {}
KeyValueCache::~KeyValueCache() = default;
KeyValueCache::KeyValueCache(KeyValueCache&&) noexcept = default;
KeyValueCache& KeyValueCache::operator=(KeyValueCache&&) noexcept = default;

GptImpl::GptImpl(const GptOptions& options, const Layers& layers)
    : options_(options), layers_(layers) {
  for (const auto size : {options.vocabulary, options.context, options.layers, options.width})
    check(size > 0, "gpt: vocabulary, context, layers and width must be positive, not {}", size);
  GptImpl::reset();
}

TransformerBlockOptions GptImpl::block_options() const {
  return {.attention = {.width = options_.width,
                        .heads = options_.heads,
                        .key_value_heads = options_.key_value_heads,
                        .rotary_base = options_.rotary_base,
                        .dropout = options_.dropout},
          .feed_forward = options_.feed_forward > 0 ? options_.feed_forward : 4 * options_.width};
}

void GptImpl::reset() {
  wte_ = layers_.embedding({options_.vocabulary, options_.width});
  register_module("wte", wte_.ptr());
  if (options_.rotary_base == 0)
    wpe_ = register_module("wpe", torch::nn::Embedding(options_.context, options_.width));
  h_ = register_module(
      "h", std::make_shared<TransformerBlocksImpl>(block_options(), layers_, options_.layers));
  ln_f_ = layers_.layer_norm(torch::nn::LayerNormOptions({options_.width}));
  register_module("ln_f", ln_f_.ptr());
  init_transformer(*this, 2 * options_.layers);
}

at::Tensor GptImpl::embed_from(const at::Tensor& tokens, std::int64_t position) {
  const std::int64_t end = position + tokens.size(1);
  check(end <= options_.context, "gpt: {} tokens are more than the context of {}", end,
        options_.context);
  at::Tensor states = wte_.forward<at::Tensor>(tokens);
  if (!wpe_.is_empty()) {
    const auto integers = at::device(tokens.device()).dtype(at::kLong);
    states = states + wpe_->forward(at::arange(position, end, integers));
  }
  return layers_.dropout(layers_.spread_out(states), options_.dropout, is_training());
}

std::vector<at::Tensor> GptImpl::embed(const std::vector<at::Tensor>& inputs) {
  return {embed_from(inputs.at(0), 0)};
}

at::Tensor GptImpl::run_blocks(const std::vector<at::Tensor>& states) {
  return h_->forward(states[0]);
}

at::Tensor GptImpl::logits_of(const at::Tensor& states) {
  return layers_.logits(ln_f_.forward<at::Tensor>(states), weight_of(wte_), {});
}

at::Tensor GptImpl::forward(const at::Tensor& tokens, KeyValueCache* past) {
  at::Tensor states = embed_from(tokens, past == nullptr ? 0 : past->count_);
  states = h_->forward(states, {}, past == nullptr ? nullptr : past->layers_.get());
  if (past != nullptr) past->count_ += tokens.size(1);
  return logits_of(states);
}

void GptImpl::require_same(const std::string& next_call) const {
  if (layers_.require_same) layers_.require_same(next_call);
}

KeyValueCache GptImpl::make_past(std::int64_t sequences, std::int64_t tokens) const {
  return KeyValueCache(h_->make_past(sequences, tokens));
}

at::Tensor GptImpl::tied_weight() const { return weight_of(wte_); }

void GptImpl::share_tied_weight(const GptImpl& other) {
  wte_ = other.wte_;
  replace_module("wte", wte_.ptr());
}

void GptImpl::keep(BlockRange range) {
  const bool is_first = range.begin == 0, is_last = range.end == options_.layers;
  h_->keep(range);
  if (!is_first && !wpe_.is_empty()) {
    unregister_module("wpe");
    wpe_ = nullptr;
  }
  if (!is_first && !is_last) {
    unregister_module("wte");
    wte_ = torch::nn::AnyModule();
  }
  if (!is_last) {
    unregister_module("ln_f");
    ln_f_ = torch::nn::AnyModule();
  }
}

double internal::operations_per_token(const GptOptions& options) {
  const auto width = static_cast<double>(options.width), heads = static_cast<double>(options.heads);
  const double key_value_heads =
      options.key_value_heads > 0 ? static_cast<double>(options.key_value_heads) : heads;
  const double feed_forward =
      options.feed_forward > 0 ? static_cast<double>(options.feed_forward) : 4 * width;
  const double attention = 2 * width * width * (1 + key_value_heads / heads);
  const double products = 2 * static_cast<double>(options.context) * width;
  const double block = attention + 2 * width * feed_forward + products;
  return 3 * 2 *
         (static_cast<double>(options.layers) * block +
          width * static_cast<double>(options.vocabulary));
}

at::Tensor next_token_loss(const at::Tensor& logits, const at::Tensor& next_tokens) {
  return at::cross_entropy_loss(logits.flatten(0, 1), next_tokens.flatten());
}

namespace {

// Keeps the model in evaluation mode while this object lives.
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

// Draws tokens [N, 1] from logits [N, vocabulary].
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

// Describes everything on which the draw of tokens depends. Ranks that share the model each draw
// every token themselves, so these values must be the same on all of them.
std::string describe(const at::Tensor& prompt, const GenerateOptions& options) {
  const at::Tensor tokens = prompt.to(at::kCPU, at::kLong).contiguous();
  const auto* const values = tokens.data_ptr<std::int64_t>();
  const auto count = static_cast<std::size_t>(tokens.numel());
  return fmt::format(
      "generate, prompt [{}, {}] (CRC {:08x}), {} tokens, temperature {}, top_k {}, "
      "end {}, seed {}",
      prompt.size(0), prompt.size(1), crc32c(std::as_bytes(std::span(values, count))),
      options.tokens, options.temperature, options.top_k,
      options.end ? fmt::to_string(*options.end) : "none", options.seed);
}

// Returns the logits of the last position, [N, vocabulary], on the CPU.
at::Tensor last_logits(Gpt& model, const at::Tensor& tokens, KeyValueCache& past) {
  const at::Tensor logits = model->forward(tokens, &past).select(1, -1);
  check(logits.size(-1) == model->options().vocabulary,
        "generate: the model returned {} logits for a vocabulary of {}, a part of them on each "
        "rank: build it with gather_logits = true (TensorParallelOptions)",
        logits.size(-1), model->options().vocabulary);
  return logits.to(at::kCPU, at::kFloat);
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
  KeyValueCache past = model->make_past(prompt.size(0), most);
  at::Tensor all = prompt.cpu();
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
    next = next.to(prompt.device());
  }
  return all.to(prompt.device());
}

}  // namespace paceline::models
