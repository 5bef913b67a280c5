#include "paceline/training/data/batch_mixing.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include <ATen/ATen.h>

#include "paceline/engine/core/check.h"
#include "paceline/files/images/sample_random.h"

namespace paceline::data {
namespace {

// Mixes each sample with the previous one: share x sample + (1 - share) x previous sample.
at::Tensor averaged(const at::Tensor& a, double share) {
  return a.roll(1, 0).mul_(1 - share).add_(a.mul(share));
}

// Pastes a rectangle of the previous sample into each image. The rectangle is sqrt(1 - share) times
// as wide and as high as the image, centred on a random point and clipped at the edges. Returns the
// share of the image that is kept.
double paste(at::Tensor& images, double share, images::SampleRandom& random) {
  const std::int64_t height = images.size(2), width = images.size(3);
  const std::int64_t x = random.below(width), y = random.below(height);
  const double half = 0.5 * std::sqrt(1 - share);
  const auto half_width = static_cast<std::int64_t>(half * static_cast<double>(width));
  const auto half_height = static_cast<std::int64_t>(half * static_cast<double>(height));
  const std::int64_t left = std::max<std::int64_t>(x - half_width, 0);
  const std::int64_t top = std::max<std::int64_t>(y - half_height, 0);
  const std::int64_t columns = std::min(x + half_width, width) - left;
  const std::int64_t rows = std::min(y + half_height, height) - top;
  const auto part = [&](const at::Tensor& of) {
    return of.narrow(2, top, rows).narrow(3, left, columns);
  };
  part(images).copy_(part(images.roll(1, 0)));
  return 1 - static_cast<double>(rows * columns) / static_cast<double>(height * width);
}

}  // namespace

MixedBatches::MixedBatches(std::shared_ptr<const Dataset> dataset,
                           const BatchMixingOptions& options)
    : dataset_(std::move(dataset)), options_(options) {
  check(options.num_classes > 0, "mixed batches: num_classes is {}, but must be above 0",
        options.num_classes);
  for (const double alpha : {options.mixup_alpha, options.cutmix_alpha})
    check(alpha >= 0 && std::isfinite(alpha),
          "mixed batches: an alpha is {}, but must be finite and not negative", alpha);
  check(options.label_smoothing >= 0 && options.label_smoothing <= 1,
        "mixed batches: label_smoothing is {}, but must be in [0, 1]", options.label_smoothing);
}

at::Tensor MixedBatches::soft_labels(const at::Tensor& labels,
                                     std::span<const std::int64_t> indices) const {
  check(labels.dim() == 1 && labels.scalar_type() == at::kLong,
        "mixed batches: {} gives no labels of int64 [B]", name());
  const std::int64_t classes = options_.num_classes;
  const auto* label = labels.data_ptr<std::int64_t>();
  for (const std::int64_t index : indices) {
    check(*label >= 0 && *label < classes,
          "mixed batches: sample {} of {} has the label {}, which is not in [0, {})", index, name(),
          *label, classes);
    ++label;
  }
  const double off = options_.label_smoothing / static_cast<double>(classes);
  at::Tensor soft = at::full({labels.size(0), classes}, off, at::kFloat);
  return soft.scatter_add_(1, labels.unsqueeze(1),
                           at::full({labels.size(0), 1}, 1 - options_.label_smoothing, at::kFloat));
}

std::vector<at::Tensor> MixedBatches::batch(std::span<const std::int64_t> indices,
                                            std::int64_t epoch) const {
  std::vector<at::Tensor> tensors = dataset_->batch(indices, epoch);
  check(tensors.size() >= 2 && tensors[0].is_floating_point(),
        "mixed batches: {} does not give floats and labels", name());
  at::Tensor &data = tensors[0], &target = tensors[1];
  target = soft_labels(target.contiguous(), indices);
  const bool may_mix = options_.mixup_alpha > 0, may_cut = options_.cutmix_alpha > 0;
  if (!may_mix && !may_cut) return tensors;
  images::SampleRandom random(options_.seed, epoch, indices.front());
  const bool cuts = may_cut && (!may_mix || random.uniform() < 0.5);
  double share = random.beta(cuts ? options_.cutmix_alpha : options_.mixup_alpha);
  if (cuts) {
    check(data.dim() == 4, "mixed batches: cutmix needs images of 4 dimensions, {} gives {}",
          name(), data.dim());
    share = paste(data, share, random);
  } else {
    data = averaged(data, share);
  }
  target = averaged(target, share);
  return tensors;
}

}  // namespace paceline::data
