#pragma once

// Turns the bytes of an image into the model's input: normalised floats, optionally cropped and
// flipped at random. The random choices depend only on (seed, epoch, index of the sample), not on
// the batch, the number of loader threads or the number of ranks.

#include <cstdint>
#include <vector>

namespace paceline::data {

// How ImageSamples (image_dataset.h) makes the model's input of an image.
struct ImageSamplesOptions {
  std::vector<float> mean;  // for each channel, of pixels in [0, 1]; empty: 0
  std::vector<float> std;   // for each channel, above 0; empty: 1
  // Pads the image with this many zero pixels on each side and crops the original size at a random
  // position.
  int crop_padding = 0;
  bool random_flip = false;    // mirrored left to right with probability 1/2
  bool channels_last = false;  // memory format of the images
  std::uint64_t seed = 0;      // for the random choices
};

struct ImageShape {
  std::int64_t channels = 0, height = 0, width = 0;
  std::int64_t pixels() const { return channels * height * width; }
};

class ImageTransform {
 public:
  // Error(kInvalid) when the size of mean or std is not the number of channels.
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

}  // namespace paceline::data
