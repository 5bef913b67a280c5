#include "paceline/training/tensor_parallel/vocab_parallel.h"

#include <ostream>
#include <utility>

#include <ATen/ATen.h>
#include <torch/nn/modules/embedding.h>

#include "paceline/engine/core/check.h"
#include "paceline/training/tensor_parallel/require_parts.h"

namespace paceline {
namespace {

constexpr const char* kEmbedding = "VocabParallelEmbedding";

}  // namespace

VocabParallelEmbeddingImpl::VocabParallelEmbeddingImpl(const torch::nn::EmbeddingOptions& options,
                                                       GroupPtr group)
    : options_(options), group_(std::move(group)) {
  tensor_parallel::require_group(kEmbedding, group_);
  if (options.padding_idx() || options.max_norm() || options.sparse() ||
      options.scale_grad_by_freq()) {
    fail(ErrorCode::kUnsupported, "{}: {}: takes the sizes only, no other option", group_->self(),
         kEmbedding);
  }
  division_ = tensor_parallel::division_among(
      kEmbedding, *group_, 0, options.num_embeddings(),
      {.block = "tokens of the vocabulary", .counts = {options.num_embeddings()}});
  VocabParallelEmbeddingImpl::reset();
}

void VocabParallelEmbeddingImpl::reset() {
  const torch::nn::Embedding whole(options_);
  weight = register_parameter("weight", division_.part_of(whole->weight.detach()));
  tensor_parallel::note_parts(kEmbedding, division_, {weight});
}

at::Tensor VocabParallelEmbeddingImpl::forward(const at::Tensor& tokens) {
  check(tokens.defined() &&
            tokens.ge(0).logical_and_(tokens.lt(options_.num_embeddings())).all().item<bool>(),
        "{}: {}: a token is outside of the vocabulary of {}", group_->self(), kEmbedding,
        options_.num_embeddings());
  const std::int64_t rows = weight.size(0);
  const at::Tensor own = tokens - rows * group_->rank();
  const at::Tensor elsewhere = own.lt(0).logical_or_(own.ge(rows));
  const at::Tensor part =
      at::embedding(weight, own.masked_fill(elsewhere, 0)).masked_fill(elsewhere.unsqueeze(-1), 0);
  return reduce_from_region(group_, part);
}

std::optional<models::Division> VocabParallelEmbeddingImpl::division_of(const std::string&) const {
  return division_;
}

void VocabParallelEmbeddingImpl::pretty_print(std::ostream& stream) const {
  stream << "paceline::" << kEmbedding << "(num_embeddings=" << options_.num_embeddings()
         << ", embedding_dim=" << options_.embedding_dim() << ", part=" << group_->rank() << "/"
         << group_->world_size() << ")";
}

}  // namespace paceline
