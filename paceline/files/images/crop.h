#pragma once

// Which part of an image is taken, as torchvision defines it: RandomResizedCrop, RandomErasing, and
// Resize with CenterCrop.
//
// Thread safety: pure functions.

#include "paceline/files/images/image.h"
#include "paceline/files/images/sample_random.h"

namespace paceline::images {

struct Range {
  double low = 0, high = 0;
};

struct RandomResizedCropOptions {
  Range area{0.08, 1};                 // of the image's area
  Range aspect{3.0 / 4.0, 4.0 / 3.0};  // width by height
};

// An area and, evenly in its logarithm, an aspect; after ten that do not fit, the largest part in
// the middle with an aspect in the range. Requires: the ranges are in order, and above 0.
Region random_resized_crop(Size image, const RandomResizedCropOptions& options,
                           SampleRandom& random);

struct RandomErasingOptions {
  double probability = 0;
  Range area{0.02, 0.33};
  Range aspect{0.3, 3.3};
  bool with_noise = false;  // of mean 0 and variance 1, after normalising; otherwise 0
};

// A region to erase, of no size when it is not to be: by its probability, or because ten did not
// fit.
Region random_erasing(Size image, const RandomErasingOptions& options, SampleRandom& random);

// The image resized so that its shorter side has `shorter` pixels, and the part of that in the
// middle. Where that is smaller than `crop`, the region reaches beyond it: torchvision pads with 0.
struct CentreCrop {
  Size resized;
  Region region;
};
CentreCrop centre_crop(Size image, int shorter, Size crop);

}  // namespace paceline::images
