#pragma once

// Batches with soft labels: mixup, cutmix and label smoothing, as torchvision's transforms v2 and
// PyTorch's cross_entropy define them.
//
//   const auto mixed = std::make_shared<data::MixedBatches>(
//       train,
//       data::BatchMixingOptions{.num_classes = 1000, .mixup_alpha = 0.2, .cutmix_alpha = 1});
//
// For training only: a MixedBatches replaces the data set that it wraps. Its batches have float32
// targets [B, num_classes], as torch::nn::functional::cross_entropy accepts them. Each sample of a
// batch is mixed with the previous one, the first with the last. The random numbers depend only on
// (seed, epoch, index of the batch's first sample), so a resumed run mixes in the same way. Samples
// of a batch are mixed, so the mixtures depend on the number of ranks, except with logical shards.
//
// Thread safety: all functions are const; any thread may call them.

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "paceline/training/data/dataset.h"

namespace paceline::data {

struct BatchMixingOptions {
  std::int64_t num_classes = 0;
  // Parameters of the Beta distributions from which the mixing share is drawn; 0: not used. If both
  // are used, each batch uses one of them, with equal probability.
  double mixup_alpha = 0;      // two images are averaged with random weights
  double cutmix_alpha = 0;     // a rectangle of an image is replaced by that part of another image
  double label_smoothing = 0;  // the part of a target's weight that is spread over all classes
  std::uint64_t seed = 0;
};

class MixedBatches : public Dataset {
 public:
  // Error(kInvalid) for options that are out of range.
  MixedBatches(std::shared_ptr<const Dataset> dataset, const BatchMixingOptions& options);

  std::string name() const override { return dataset_->name(); }
  std::int64_t size() const override { return dataset_->size(); }
  // Error(kInvalid) unless the data set returns floats [B, ...] (for cutmix [B, channels, height,
  // width]) and int64 [B]; also for a label that is not in [0, num_classes), with the number of its
  // sample.
  std::vector<at::Tensor> batch(std::span<const std::int64_t> indices,
                                std::int64_t epoch) const override;

 private:
  at::Tensor soft_labels(const at::Tensor& labels, std::span<const std::int64_t> indices) const;

  const std::shared_ptr<const Dataset> dataset_;  // shared with the user
  const BatchMixingOptions options_;
};

}  // namespace paceline::data
