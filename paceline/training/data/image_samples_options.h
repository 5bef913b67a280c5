#pragma once

// How images in memory become the model's input. Values.

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

}  // namespace paceline::data
