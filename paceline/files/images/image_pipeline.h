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
#include "paceline/files/images/image_pipeline_options.h"
#include "paceline/files/images/sample_random.h"

namespace paceline::images {

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
