#pragma once

// The options of an ImagePipeline: how an image file becomes the input of a model.
//
// Thread safety: values.

#include <cstdint>
#include <vector>

namespace paceline::images {

// A size in pixels.
struct Size {
  int width = 0, height = 0;
  bool operator==(const Size&) const = default;
};

// How an image file is decoded, and how large it may be. A value.
struct DecodeOptions {
  std::int64_t max_pixels = 178'956'970;      // Pillow's limit as well
  std::int64_t max_file_bytes = 256LL << 20;  // size of the largest file
  bool exif_transpose = true;  // turn by EXIF or XMP, unlike torchvision's ImageFolder
};

struct Range {
  double low = 0, high = 0;
};

struct RandomErasingOptions {
  double probability = 0;
  Range area{0.02, 0.33};
  Range aspect{0.3, 3.3};
  bool with_noise = false;  // true: noise of mean 0 and variance 1, after normalising; false: 0
};

// torchvision's ColorJitter: factors uniform in [1 - x, 1 + x], not below 0, and a rotation of the
// hue uniform in [-hue, hue], applied in random order. A field of 0 leaves its property unchanged.
struct ColourJitterOptions {
  double brightness = 0, contrast = 0, saturation = 0, hue = 0;
  bool changes() const { return brightness > 0 || contrast > 0 || saturation > 0 || hue > 0; }
};

enum class Framing {
  kRandomResizedCrop,  // a random part, resized to `size`
  kCentreCrop,         // the shorter side resized, then a part of `size` taken from the middle
  kWhole,              // the whole image, resized to `size`, whatever its aspect
};

struct ImagePipelineOptions {
  Size size{224, 224};
  Framing framing = Framing::kCentreCrop;
  // The part that kRandomResizedCrop takes: its area / the image's, and its width / its height.
  Range crop_area{0.08, 1};
  Range crop_aspect{3.0 / 4.0, 4.0 / 3.0};
  int shorter_side = 256;       // for kCentreCrop, before the crop
  double flip_probability = 0;  // probability of mirroring left to right
  ColourJitterOptions jitter = {};
  RandomErasingOptions erasing = {};
  std::vector<float> mean = {}, std = {};  // of red, green and blue in [0, 1]; empty: 0 and 1
  // A part is decoded at 1/n if the result is still at least this many times as large as the final
  // size, like Pillow's reducing_gap; 0: never.
  double reducing_gap = 2;
  DecodeOptions decode = {};
};

// ImageNet's usual mean and standard deviation, references to vectors that are never destroyed.
// NOLINTBEGIN(readability-identifier-naming)
inline const auto& kImageNetMean = *new std::vector<float>{0.485F, 0.456F, 0.406F};
inline const auto& kImageNetStd = *new std::vector<float>{0.229F, 0.224F, 0.225F};
// NOLINTEND(readability-identifier-naming)

}  // namespace paceline::images
