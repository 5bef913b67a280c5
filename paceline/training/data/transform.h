#pragma once

// Turns the bytes of an image into the model's input: normalised floats, optionally cropped and
// flipped at random. The random choices depend only on (seed, epoch, index of the sample), not on
// the batch, the number of loader threads or the number of ranks.

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include <ATen/core/Tensor.h>

#include "paceline/training/data/image_dataset.h"

namespace paceline::data {

struct ImageShape {
  std::int64_t channels = 0, height = 0, width = 0;
  std::int64_t pixels() const { return channels * height * width; }
};

class ImageTransform {
 public:
  // Error(kInvalid) for options out of range. mean and std: empty, or one value for each channel.
  ImageTransform(const ImageShape& shape, const ImageSamplesOptions& options);

  // Transforms one image of the given shape: planes of bytes become planes of floats, or floats
  // with the channels last. Thread safety: const; any thread may call it.
  void apply(const std::uint8_t* image, float* out, std::int64_t epoch, std::int64_t index) const;

 private:
  struct Placement {
    std::int64_t shift_y = 0, shift_x = 0;
    bool flip = false;
  };
  Placement place(std::int64_t epoch, std::int64_t index) const;

  const ImageShape shape_;
  const ImageSamplesOptions options_;
  std::vector<float> table_;  // [channel][byte]: the normalised value of the byte
};

// Makes a batch of these samples: float32 [B, channels, height, width] and the labels, int64 [B].
// `load` writes the image of an index to `out` and returns its label.
std::vector<at::Tensor> make_image_batch(
    std::span<const std::int64_t> indices, const ImageShape& shape, bool channels_last,
    const std::function<std::int64_t(std::int64_t index, float* out)>& load);

}  // namespace paceline::data
