#include "paceline/training/tensor_parallel/vocab_parallel.h"

#include <ostream>
#include <utility>

#include <fmt/ranges.h>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/custom_class.h>
#include <torch/nn/modules/embedding.h>

#include "paceline/engine/core/check.h"
#include "paceline/training/autograd/regions.h"
#include "paceline/training/models/divided_layer.h"
#include "paceline/training/tensor/collectives.h"
#include "paceline/training/tensor/tensor_view.h"
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

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr const char* kLoss = "vocab_parallel_cross_entropy";

struct Ranks : torch::CustomClassHolder {
  explicit Ranks(GroupPtr of) : group(std::move(of)) {}
  GroupPtr group;
};

// Computes a loss for each row of logits [rows, part of the vocabulary]; 0 for a row whose `counts`
// is false. `own` is the target's column in this part; it is negative or too large if another rank
// has the target.
struct RowLosses : torch::autograd::Function<RowLosses> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& logits,
                            const at::Tensor& own, const at::Tensor& counts,
                            const c10::intrusive_ptr<Ranks>& ranks) {
    ProcessGroup& group = *ranks->group;
    const at::Tensor largest = logits.amax(-1);
    all_reduce(group, largest, ReduceOp::kMax);
    at::Tensor shifted = logits - largest.unsqueeze(-1);
    const at::Tensor is_here = own.ge(0).logical_and_(own.lt(logits.size(-1)));
    const at::Tensor column = own.masked_fill(is_here.logical_not(), 0).unsqueeze(-1);
    const at::Tensor picked =
        shifted.gather(-1, column).squeeze(-1).masked_fill_(is_here.logical_not(), 0);
    const at::Tensor exponentials = shifted.exp_();
    const at::Tensor sums = at::stack({exponentials.sum(-1), picked});
    all_reduce(group, sums);
    context->save_for_backward({exponentials.div_(sums[0].unsqueeze(-1)), column, is_here, counts});
    return (sums[0].log() - sums[1]).masked_fill_(counts.logical_not(), 0);
  }

  // The gradient consists of the probabilities, minus 1 at the target.
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto saved = context->get_saved_variables();
    const at::Tensor of_row = gradients[0].masked_fill(saved[3].logical_not(), 0).unsqueeze(-1);
    at::Tensor gradient = saved[0] * of_row;
    gradient.scatter_add_(-1, saved[1], of_row.neg().mul_(saved[2].unsqueeze(-1)));
    return {gradient, at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

void require_shapes(const ProcessGroup& group, const at::Tensor& logits,
                    const at::Tensor& targets) {
  check(logits.defined() && targets.defined() && logits.dim() == targets.dim() + 1 &&
            logits.sizes().slice(0, static_cast<std::size_t>(targets.dim())) == targets.sizes(),
        "{}: {}: logits [{}] do not fit targets [{}]", group.self(), kLoss,
        fmt::join(logits.sizes(), ", "), fmt::join(targets.sizes(), ", "));
}

}  // namespace

at::Tensor vocab_parallel_cross_entropy(const GroupPtr& group, const at::Tensor& logits,
                                        const at::Tensor& targets, std::int64_t ignore_index,
                                        std::int64_t reduction) {
  tensor_parallel::require_group(kLoss, group);
  require_shapes(*group, logits, targets);
  const std::int64_t columns = logits.size(-1);
  const std::int64_t vocabulary = columns * group->world_size();
  const at::Tensor target = targets.flatten();
  const at::Tensor counts = target.ne(ignore_index);
  const at::Tensor is_token = target.ge(0).logical_and_(target.lt(vocabulary));
  check(is_token.logical_or(counts.logical_not()).all().item<bool>(),
        "{}: {}: a target is outside of the vocabulary of {}", group->self(), kLoss, vocabulary);
  const at::Tensor own = target.masked_fill(counts.logical_not(), -1) - columns * group->rank();
  const at::Tensor wide = is_16_bit(logits.scalar_type()) ? logits.to(at::kFloat) : logits;
  const at::Tensor losses =
      RowLosses::apply(wide.reshape({-1, columns}), own, counts, c10::make_intrusive<Ranks>(group));
  if (reduction == at::Reduction::None) return losses.view(targets.sizes());
  const at::Tensor sum = losses.sum();
  return reduction == at::Reduction::Sum ? sum : sum / counts.sum();
}

}  // namespace paceline
