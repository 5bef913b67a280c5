#pragma once

// torchvision's transforms on images in memory, as single functions and as a pipeline from a file's
// bytes to the input of a model.
//
// Thread safety: free functions work on the caller's values; an ImagePipeline is constant.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "paceline/files/images/encoded_image.h"
#include "paceline/files/images/image.h"
#include "paceline/files/images/sample_random.h"

namespace paceline::images {

struct Range {
  double low = 0, high = 0;
};

struct RandomResizedCropOptions {
  Range area{0.08, 1};                 // relative to the image's area
  Range aspect{3.0 / 4.0, 4.0 / 3.0};  // width by height
};

// The part that torchvision's RandomResizedCrop takes: a random area and a random aspect, uniform
// in its logarithm. After ten draws that do not fit, it is the largest part in the middle with an
// aspect in the range. Requires: the ranges are ordered and above 0.
Region random_resized_crop(Size image, const RandomResizedCropOptions& options,
                           SampleRandom& random);

struct RandomErasingOptions {
  double probability = 0;
  Range area{0.02, 0.33};
  Range aspect{0.3, 3.3};
  bool with_noise = false;  // true: noise of mean 0 and variance 1, after normalising; false: 0
};

// The region that torchvision's RandomErasing erases. Its size is empty if nothing is erased,
// because of the probability or because ten draws did not fit.
Region random_erasing(Size image, const RandomErasingOptions& options, SampleRandom& random);

// torchvision's Resize and CenterCrop: the size with `shorter` pixels on the shorter side, and the
// part in its middle. If the resized image is smaller than `crop`, the region extends beyond it:
// torchvision pads with 0.
struct CentreCrop {
  Size resized;
  Region region;
};
CentreCrop centre_crop(Size image, int shorter, Size crop);

// Changes of colour, byte for byte as in Pillow's ImageEnhance, which torchvision uses. A factor of
// 1 changes nothing. A factor of 0 gives black for brightness, the mean grey for contrast, and a
// grey image for saturation. Requires: the factor is not negative.
void adjust_brightness(Image& image, double factor);
void adjust_contrast(Image& image, double factor);
void adjust_saturation(Image& image, double factor);
// Rotates the hue by this part of the circle, in [-0.5, 0.5].
void adjust_hue(Image& image, double turn);

// torchvision's ColorJitter: factors uniform in [1 - x, 1 + x], not below 0, and a turn uniform in
// [-hue, hue], applied in a random order. 0 leaves that property unchanged.
struct ColourJitterOptions {
  double brightness = 0, contrast = 0, saturation = 0, hue = 0;
  bool changes() const { return brightness > 0 || contrast > 0 || saturation > 0 || hue > 0; }
};
void colour_jitter(Image& image, const ColourJitterOptions& options, SampleRandom& random);

enum class Framing {
  kRandomResizedCrop,  // a random part, resized to `size`
  kCentreCrop,         // the shorter side resized, then a part of `size` taken from the middle
  kWhole,              // the whole image, resized to `size`, whatever its aspect
};

struct ImagePipelineOptions {
  Size size{224, 224};
  Framing framing = Framing::kCentreCrop;
  RandomResizedCropOptions crop;
  int shorter_side = 256;       // for kCentreCrop, before the crop
  double flip_probability = 0;  // probability of mirroring left to right
  ColourJitterOptions jitter;
  RandomErasingOptions erasing;
  std::vector<float> mean, std;  // of red, green and blue in [0, 1]; empty: 0 and 1
  // A part is decoded at 1/n if the result is still at least this many times as large as the final
  // size, like Pillow's reducing_gap; 0: never.
  double reducing_gap = 2;
  DecodeOptions decode;
};

// ImageNet's usual mean and deviation. They are references to vectors that are never destroyed.
// NOLINTBEGIN(readability-identifier-naming)
inline const auto& kImageNetMean = *new std::vector<float>{0.485F, 0.456F, 0.406F};
inline const auto& kImageNetStd = *new std::vector<float>{0.229F, 0.224F, 0.225F};
// NOLINTEND(readability-identifier-naming)

// Turns a file's bytes into the input of a model: decode, take a part, resize, change colours,
// mirror, normalise, erase; in this order, and each as torchvision's transforms do it on Pillow's
// images.
//
// For training: kRandomResizedCrop with a flip probability. For evaluation: kCentreCrop. The random
// choices of a sample depend only on (seed, epoch, index).
//
// Only the needed part is decoded. If the part of a JPEG is far larger than its final size, it is
// decoded to 1/2, 1/4 or 1/8 of its size, which is several times faster. The bytes then differ
// slightly from Pillow's (docs/data.md); with reducing_gap 0 they are equal.
class ImagePipeline {
 public:
  // Throws Error(kInvalid) for invalid options.
  explicit ImagePipeline(const ImagePipelineOptions& options, std::uint64_t seed = 0);

  const ImagePipelineOptions& options() const { return options_; }
  std::int64_t num_values() const { return 3LL * options_.size.width * options_.size.height; }

  // Writes num_values() floats, as three planes or with the channels last. Throws the errors of
  // EncodedImage.
  void apply(std::span<const std::byte> bytes, const std::string& name, float* out,
             bool channels_last, std::int64_t epoch, std::int64_t index) const;
  // The image before it is mirrored and normalised, for tests and for inspection.
  Image framed(std::span<const std::byte> bytes, const std::string& name,
               SampleRandom& random) const;

 private:
  Image frame(EncodedImage& image, SampleRandom& random) const;
  Image take(EncodedImage& image, const Region& part, Size resized, const Region& window) const;
  void normalise(const Image& image, bool mirrored, float* out, bool channels_last) const;
  void erase(const Region& region, float* out, bool channels_last, SampleRandom& random) const;

  const ImagePipelineOptions options_;
  const std::uint64_t seed_;
  std::vector<float> table_;  // [channel][byte]: the normalised value
};

}  // namespace paceline::images
