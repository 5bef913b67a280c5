#pragma once

// Labelled images as a model takes them: float32 [B, channels, height, width], transformed, and
// int64 [B].

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "paceline/training/data/dataset.h"
#include "paceline/training/data/image_dataset.h"
#include "paceline/training/data/transform.h"

namespace paceline::data {

struct ImageSamplesOptions {
  TransformOptions transform;
  bool channels_last = false;  // memory format of the images
  std::uint64_t seed = 0;      // of the transform's random choices
};

class ImageSamples : public Dataset {
 public:
  // Error(kInvalid) when the images and labels are not what image_dataset.h says, or not of the
  // same number. Tensors that are not contiguous, as after permute(), are copied once.
  explicit ImageSamples(ImageDataset images, const ImageSamplesOptions& options = {});

  std::string name() const override { return images_.name; }
  std::int64_t size() const override { return images_.size(); }
  std::vector<at::Tensor> batch(std::span<const std::int64_t> indices,
                                std::int64_t epoch) const override;

 private:
  const ImageDataset images_;
  const ImageShape shape_;
  const bool channels_last_;
  const ImageTransform transform_;
};

}  // namespace paceline::data
