#include "examples/train_recommender/dlrm.h"

namespace train_recommender {

namespace nn = torch::nn;

DlrmImpl::DlrmImpl(const DlrmOptions& options) {
  const std::int64_t vectors = options.fields + 1;
  const at::Tensor pairs = at::tril_indices(vectors, vectors, -1);
  first_ = register_buffer("first", pairs[0].contiguous());
  second_ = register_buffer("second", pairs[1].contiguous());
  bottom_ = register_module("bottom",
                            nn::Sequential(nn::Linear(options.dense, options.hidden), nn::ReLU(),
                                           nn::Linear(options.hidden, options.width), nn::ReLU()));
  top_ = register_module(
      "top", nn::Sequential(nn::Linear(options.width + first_.numel(), options.hidden), nn::ReLU(),
                            nn::Linear(options.hidden, options.hidden / 2), nn::ReLU(),
                            nn::Linear(options.hidden / 2, 1)));
}

at::Tensor DlrmImpl::forward(const at::Tensor& dense, const at::Tensor& rows) {
  const at::Tensor features = bottom_->forward(dense);
  const at::Tensor vectors = at::cat({features.unsqueeze(1), rows}, 1);
  const at::Tensor products = at::bmm(vectors, vectors.transpose(1, 2));
  const at::Tensor pairs = products.index({torch::indexing::Slice(), first_, second_});
  return top_->forward(at::cat({features, pairs}, 1)).squeeze(1);
}

}  // namespace train_recommender
