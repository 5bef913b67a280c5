#pragma once

// torchvision's transforms on images in memory, as single functions and as a pipeline from a file's
// bytes to the input of a model.
//
// Thread safety: free functions work on the caller's values, except for the random numbers that
// they draw; an ImagePipeline is constant.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "paceline/files/images/encoded_image.h"
#include "paceline/files/images/image.h"
#include "paceline/files/images/image_pipeline_options.h"
#include "paceline/files/images/sample_random.h"

namespace paceline::images {

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

// The part that torchvision's RandomResizedCrop takes: a random area and a random aspect, uniform
// in its logarithm. After ten draws that do not fit, it is the largest part in the middle with an
// aspect in the range. Requires: the ranges are ordered and above 0.
Region random_resized_crop(Size image, Range area, Range aspect, SampleRandom& random);

// The region that torchvision's RandomErasing erases. The region is empty if nothing is erased,
// because of the probability or because ten draws did not fit.
Region random_erasing(Size image, const RandomErasingOptions& options, SampleRandom& random);

// torchvision's Resize and CenterCrop: the size with `shorter` pixels on the shorter side, and the
// region in the middle of the resized image. If that image is smaller than `crop`, the region
// extends beyond the image, where torchvision pads with 0.
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
// Rotates the hue by `turn`, a fraction of the full circle in [-0.5, 0.5].
void adjust_hue(Image& image, double turn);

void colour_jitter(Image& image, const ColourJitterOptions& options, SampleRandom& random);

}  // namespace paceline::images
