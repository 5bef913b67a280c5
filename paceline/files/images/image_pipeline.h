#pragma once

// From a file's bytes to what a model takes: decode, take a part, resize, change colours, mirror,
// normalise, erase; in this order, and each as torchvision's transforms do it on Pillow's images.
//
// For training: kRandomResizedCrop with a flip probability. For evaluation: kCentreCrop. The random
// choices of a sample depend on (seed, epoch, index) alone.
//
// Only the part that is taken is decoded. A JPEG whose part is far larger than what it is resized
// to is decoded to 1/2, 1/4 or 1/8 of its size, which is several times faster; bytes then differ
// from Pillow's a little (docs/images.md), and are equal with reducing_gap 0.
//
// Thread safety: const, any thread.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "paceline/files/images/colour.h"
#include "paceline/files/images/crop.h"
#include "paceline/files/images/encoded_image.h"
#include "paceline/files/images/image.h"

namespace paceline::images {

enum class Framing {
  kRandomResizedCrop,  // a random part, resized to the size
  kCentreCrop,         // the shorter side resized, then the size taken from the middle
  kWhole,              // the whole image, resized to the size, whatever its aspect
};

struct ImagePipelineOptions {
  Size size{224, 224};
  Framing framing = Framing::kCentreCrop;
  RandomResizedCropOptions crop;
  int shorter_side = 256;       // of kCentreCrop, before the crop
  double flip_probability = 0;  // mirrored left to right
  ColourJitterOptions jitter;
  RandomErasingOptions erasing;
  std::vector<float> mean, std;  // of red, green, blue in [0, 1]; empty: 0 and 1
  // A part is decoded at 1/n while it stays at least this many times as large as what it is resized
  // to, as Pillow's reducing_gap; 0: never.
  double reducing_gap = 2;
  DecodeOptions decode;
};

// ImageNet's usual mean and deviation: constants that are never destroyed, so references.
// NOLINTBEGIN(readability-identifier-naming)
inline const auto& kImageNetMean = *new std::vector<float>{0.485F, 0.456F, 0.406F};
inline const auto& kImageNetStd = *new std::vector<float>{0.229F, 0.224F, 0.225F};
// NOLINTEND(readability-identifier-naming)

class ImagePipeline {
 public:
  // Error(kInvalid) for options that do not fit.
  explicit ImagePipeline(const ImagePipelineOptions& options, std::uint64_t seed = 0);

  const ImagePipelineOptions& options() const { return options_; }
  std::int64_t num_values() const { return 3LL * options_.size.width * options_.size.height; }

  // Writes num_values() floats: three planes, or with the channels last. Errors: EncodedImage's.
  void apply(std::span<const std::byte> bytes, const std::string& name, float* out,
             bool channels_last, std::int64_t epoch, std::int64_t index) const;
  // The image before it is mirrored and normalised. For tests and for looking at it.
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
