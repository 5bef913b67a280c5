#pragma once

// Samples that a DataLoader makes batches of.

#include <cstdint>
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

}  // namespace paceline::data
