#include "paceline/training/data/image_samples.h"

#include <ATen/ATen.h>

#include "paceline/engine/core/check.h"

namespace paceline::data {
namespace {

// The tensors' bytes are read where they lie: in the order of their dimensions, on the CPU.
ImageDataset readable(ImageDataset dataset) {
  at::Tensor &images = dataset.images, &labels = dataset.labels;
  check(images.defined() && images.scalar_type() == at::kByte && images.dim() == 4 &&
            images.device().is_cpu(),
        "dataset {}: images must be uint8 [N, channels, height, width] in host memory",
        dataset.name);
  check(labels.defined() && labels.scalar_type() == at::kLong && labels.dim() == 1 &&
            labels.device().is_cpu(),
        "dataset {}: labels must be int64 [N] in host memory", dataset.name);
  check(labels.size(0) == images.size(0), "dataset {}: {} images and {} labels", dataset.name,
        images.size(0), labels.size(0));
  images = images.contiguous();
  labels = labels.contiguous();
  return dataset;
}

}  // namespace

ImageSamples::ImageSamples(ImageDataset images, const ImageSamplesOptions& options)
    : images_(readable(std::move(images))),
      shape_{images_.channels(), images_.height(), images_.width()},
      channels_last_(options.channels_last),
      transform_(shape_, options.transform, options.seed) {}

std::vector<at::Tensor> ImageSamples::batch(std::span<const std::int64_t> indices,
                                            std::int64_t epoch) const {
  const auto count = std::ssize(indices);
  const auto format =
      channels_last_ ? at::MemoryFormat::ChannelsLast : at::MemoryFormat::Contiguous;
  at::Tensor batch = at::empty({count, shape_.channels, shape_.height, shape_.width},
                               at::TensorOptions(at::kFloat).memory_format(format));
  at::Tensor target = at::empty({count}, at::kLong);
  auto* data = batch.data_ptr<float>();
  auto* label = target.data_ptr<std::int64_t>();
  const auto* const images = images_.images.data_ptr<std::uint8_t>();
  const auto* const labels = images_.labels.data_ptr<std::int64_t>();
  for (const std::int64_t index : indices) {
    transform_.apply(images + index * shape_.pixels(), data, channels_last_, epoch, index);
    data += shape_.pixels();
    *label++ = labels[index];
  }
  return {std::move(batch), std::move(target)};
}

}  // namespace paceline::data
