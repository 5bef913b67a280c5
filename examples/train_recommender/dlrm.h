#pragma once

// DLRM (Naumov et al., 2019): a bottom MLP for the dense features, dot products of its result and
// the rows of the ids, and a top MLP. The caller passes the rows, so this module is only the dense
// part.

#include <cstdint>

#include <torch/torch.h>

namespace train_recommender {

struct DlrmOptions {
  std::int64_t dense = 0;   // dense features
  std::int64_t fields = 0;  // ids of a sample
  std::int64_t width = 16;  // of the rows
  std::int64_t hidden = 64;
};

class DlrmImpl : public torch::nn::Module {
 public:
  explicit DlrmImpl(const DlrmOptions& options);

  // Returns logits [samples] for dense features [samples, dense] and rows [samples, fields, width].
  at::Tensor forward(const at::Tensor& dense, const at::Tensor& rows);

 private:
  torch::nn::Sequential bottom_{nullptr}, top_{nullptr};
  at::Tensor first_, second_;  // indices of the two vectors of each product
};
TORCH_MODULE(Dlrm);

}  // namespace train_recommender
