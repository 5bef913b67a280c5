#include "paceline/training/data/dataset.h"

#include <algorithm>

#include <ATen/ATen.h>

#include "paceline/engine/core/check.h"
#include "paceline/training/tensor/tensor_view.h"

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

namespace {

// Error(kInvalid) unless the samples' tensors agree in number, types and numbers of dimensions.
void require_alike(const std::vector<Sample>& samples) {
  check(!samples.empty(), "collate: a batch without samples");
  const Sample& first = samples.front();
  for (std::size_t i = 0; i < samples.size(); ++i) {
    check(samples[i].size() == first.size(),
          "collate: sample 0 of the batch has {} tensors, sample {} has {}", first.size(), i,
          samples[i].size());
    for (std::size_t t = 0; t < first.size(); ++t) {
      check(samples[i][t].defined(), "collate: tensor {} of sample {} of the batch is undefined", t,
            i);
      check(samples[i][t].scalar_type() == first[t].scalar_type() &&
                samples[i][t].dim() == first[t].dim(),
            "collate: tensor {} is {} in sample 0 of the batch and {} in sample {}", t,
            shapes_of({first[t]}), shapes_of({samples[i][t]}), i);
    }
  }
}

std::vector<at::Tensor> column(const std::vector<Sample>& samples, std::size_t t) {
  std::vector<at::Tensor> tensors;
  for (const Sample& sample : samples) tensors.push_back(sample[t]);
  return tensors;
}

at::Tensor padded_stack(const std::vector<at::Tensor>& tensors, double value) {
  std::vector<std::int64_t> sizes = tensors.front().sizes().vec();
  for (const at::Tensor& tensor : tensors) {
    for (std::size_t dim = 0; dim < sizes.size(); ++dim)
      sizes[dim] = std::max(sizes[dim], tensor.size(static_cast<std::int64_t>(dim)));
  }
  sizes.insert(sizes.begin(), std::ssize(tensors));
  const at::Tensor batch = at::full(sizes, value, tensors.front().options());
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    at::Tensor place = batch.select(0, static_cast<std::int64_t>(i));
    for (std::int64_t dim = 0; dim < tensors[i].dim(); ++dim)
      place = place.narrow(dim, 0, tensors[i].size(dim));
    place.copy_(tensors[i]);
  }
  return batch;
}

}  // namespace

std::vector<at::Tensor> stacked(const std::vector<Sample>& samples) {
  require_alike(samples);
  std::vector<at::Tensor> batch;
  for (std::size_t t = 0; t < samples.front().size(); ++t) {
    const auto tensors = column(samples, t);
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      check(tensors[i].sizes() == tensors[0].sizes(),
            "collate: tensor {} is {} in sample 0 of the batch and {} in sample {}; padded() pads "
            "tensors to the same size",
            t, shapes_of({tensors[0]}), shapes_of({tensors[i]}), i);
    }
    batch.push_back(at::stack(tensors));
  }
  return batch;
}

Collate padded(std::vector<double> values) {
  return [values = std::move(values)](const std::vector<Sample>& samples) {
    require_alike(samples);
    std::vector<at::Tensor> batch;
    for (std::size_t t = 0; t < samples.front().size(); ++t)
      batch.push_back(padded_stack(column(samples, t), t < values.size() ? values[t] : 0));
    return batch;
  };
}

SampleDataset::SampleDataset(std::string name, std::int64_t size, Load load, Collate collate)
    : name_(std::move(name)), size_(size), load_(std::move(load)), collate_(std::move(collate)) {
  check(size_ > 0, "dataset {}: {} samples", name_, size_);
  check(load_ && collate_, "dataset {}: a function that loads or collates is missing", name_);
}

std::vector<at::Tensor> SampleDataset::batch(std::span<const std::int64_t> indices,
                                             std::int64_t epoch) const {
  std::vector<Sample> samples;
  samples.reserve(indices.size());
  for (const std::int64_t index : indices) samples.push_back(load_(index, epoch));
  return collate_(samples);
}

}  // namespace paceline::data
