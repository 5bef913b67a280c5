#pragma once

// Data sets with numbered samples: the interface, rows of tensors, samples made by a function of
// the program, and functions that combine samples into a batch.

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

namespace paceline::data {

// The samples from which a DataLoader makes batches.
class Dataset {
 public:
  virtual ~Dataset() = default;
  virtual std::string name() const = 0;  // for messages
  virtual std::int64_t size() const = 0;
  // Returns the samples with these indices, all in [0, size()), as tensors whose dim 0 counts the
  // samples: usually the model's input, then the desired output, then any others. Random choices
  // must depend only on `epoch`, the sample's index and the data set's own seed, so that batches,
  // threads and ranks do not change them. Thread safety: several threads may call this function at
  // the same time.
  virtual std::vector<at::Tensor> batch(std::span<const std::int64_t> indices,
                                        std::int64_t epoch) const = 0;
};

// Rows of tensors in memory.
class TensorDataset : public Dataset {
 public:
  // Error(kInvalid) without tensors, and unless all of them have the same size along dim 0.
  TensorDataset(std::string name, std::vector<at::Tensor> tensors);

  std::string name() const override { return name_; }
  std::int64_t size() const override { return tensors_.front().size(0); }
  std::vector<at::Tensor> batch(std::span<const std::int64_t> indices,
                                std::int64_t epoch) const override;

 private:
  const std::string name_;
  const std::vector<at::Tensor> tensors_;
};

// The tensors of one sample, without a batch dimension.
using Sample = std::vector<at::Tensor>;

// Combines samples into a batch: one tensor of the batch for each tensor of a sample, with the
// samples along dim 0. Several threads may call the function at the same time.
using Collate = std::function<std::vector<at::Tensor>(const std::vector<Sample>& samples)>;

// PyTorch's default_collate for tensors: torch.stack. Error(kInvalid), with the position in the
// batch, when samples have different numbers of tensors, or tensors of different shapes or types.
std::vector<at::Tensor> stacked(const std::vector<Sample>& samples);

// Pads every dimension at its end to the largest size in the batch; in one dimension this is
// pad_sequence(batch_first=True). Tensor i of each sample is padded with values[i], or with 0 if
// there are fewer values. Throws the errors of stacked(), except that only the numbers of
// dimensions must agree, not the sizes.
Collate padded(std::vector<double> values = {});

// A data set defined by a program's own functions: one that makes a sample of any tensors, and one
// that combines samples into a batch.
//
//   const auto sentences = std::make_shared<data::SampleDataset>(
//       "sentences", std::ssize(texts),
//       [&](std::int64_t index, std::int64_t epoch) -> data::Sample {
//         return {at::tensor(tokenizer.encode(texts[index])), at::tensor(labels[index])};
//       },
//       data::padded({pad_token}));
class SampleDataset : public Dataset {
 public:
  // Makes a sample. Random choices must depend only on the index and the epoch. Several threads may
  // call the function at the same time.
  using Load = std::function<Sample(std::int64_t index, std::int64_t epoch)>;

  // Error(kInvalid) if `size` is not positive or a function is empty.
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
