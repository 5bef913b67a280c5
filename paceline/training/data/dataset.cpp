#include "paceline/training/data/dataset.h"

#include <ATen/ATen.h>

#include "paceline/engine/core/check.h"

namespace paceline::data {

TensorDataset::TensorDataset(std::string name, std::vector<at::Tensor> tensors)
    : name_(std::move(name)), tensors_(std::move(tensors)) {
  check(!tensors_.empty(), "dataset {}: no tensors", name_);
  for (const at::Tensor& tensor : tensors_) {
    check(tensor.defined() && tensor.dim() > 0, "dataset {}: a tensor has no dimension for samples",
          name_);
    check(tensor.size(0) == size(), "dataset {}: tensors of {} and of {} samples", name_, size(),
          tensor.size(0));
  }
}

std::vector<at::Tensor> TensorDataset::batch(std::span<const std::int64_t> indices,
                                             std::int64_t /*epoch*/) const {
  const auto rows = at::tensor(at::IntArrayRef(indices.data(), indices.size()), at::kLong);
  std::vector<at::Tensor> batch;
  for (const at::Tensor& tensor : tensors_) batch.push_back(tensor.index_select(0, rows));
  return batch;
}

}  // namespace paceline::data
