#pragma once

// Samples that a DataLoader makes batches of.

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

namespace paceline::data {

class Dataset {
 public:
  virtual ~Dataset() = default;
  virtual std::string name() const = 0;  // as messages call it
  virtual std::int64_t size() const = 0;
  // These samples, all in [0, size()), as tensors whose dim 0 they are: as a rule what a model
  // takes, then what it should give, then what else there is. What is random about a sample depends
  // on `epoch`, its index and the dataset's own seed alone, so that neither batches nor threads nor
  // ranks change it. Thread safety: called by several threads at a time.
  virtual std::vector<at::Tensor> batch(std::span<const std::int64_t> indices,
                                        std::int64_t epoch) const = 0;
};

// Rows of tensors in memory.
class TensorDataset : public Dataset {
 public:
  // Error(kInvalid) unless all have the same size along dim 0.
  TensorDataset(std::string name, std::vector<at::Tensor> tensors);

  std::string name() const override { return name_; }
  std::int64_t size() const override { return tensors_.front().size(0); }
  std::vector<at::Tensor> batch(std::span<const std::int64_t> indices,
                                std::int64_t epoch) const override;

 private:
  const std::string name_;
  const std::vector<at::Tensor> tensors_;
};

// A data set of one's own: a function that makes a sample of any tensors, and one that puts samples
// together to a batch.
//
//   const auto sentences = std::make_shared<data::SampleDataset>(
//       "sentences", std::ssize(texts),
//       [&](std::int64_t index, std::int64_t epoch) -> data::Sample {
//         return {at::tensor(tokenizer.encode(texts[index])), at::tensor(labels[index])};
//       },
//       data::padded({pad_token}));

// The tensors of one sample, without a dimension for the batch.
using Sample = std::vector<at::Tensor>;

// One tensor of the batch for each tensor of a sample; dim 0 are the samples. Called by several
// threads at a time.
using Collate = std::function<std::vector<at::Tensor>(const std::vector<Sample>& samples)>;

// As PyTorch's default_collate of tensors: torch.stack. Error(kInvalid) when the samples have
// different numbers of tensors, or tensors of different shapes or types, with the place in the
// batch.
std::vector<at::Tensor> stacked(const std::vector<Sample>& samples);

// Every dimension is filled up behind, to the largest of the batch (in one dimension,
// pad_sequence(batch_first=True)), with the value for that tensor of a sample; with 0 where there
// are fewer values. Error(kInvalid) as stacked(), for different numbers of dimensions or types.
Collate padded(std::vector<double> values = {});

class SampleDataset : public Dataset {
 public:
  // What is random about a sample must follow from its index and the epoch. Called by several
  // threads at a time.
  using Load = std::function<Sample(std::int64_t index, std::int64_t epoch)>;

  // Error(kInvalid) without samples or without a function.
  SampleDataset(std::string name, std::int64_t size, Load load, Collate collate = stacked);

  std::string name() const override { return name_; }
  std::int64_t size() const override { return size_; }
  std::vector<at::Tensor> batch(std::span<const std::int64_t> indices,
                                std::int64_t epoch) const override;

 private:
  const std::string name_;
  const std::int64_t size_;
  const Load load_;
  const Collate collate_;
};

}  // namespace paceline::data
