#pragma once

// The operations of an ImagePipeline.
//
// Thread safety: pure functions, except for the random numbers that they draw.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "paceline/files/images/image_pipeline.h"

namespace paceline::images {

// The part that torchvision's RandomResizedCrop takes: a random area and a random aspect, uniform
// in its logarithm. After ten draws that do not fit, it is the largest part in the middle with an
// aspect in the range. Requires: the ranges are ordered and above 0.
Region random_resized_crop(Size image, Range area, Range aspect, SampleRandom& random);

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

void colour_jitter(Image& image, const ColourJitterOptions& options, SampleRandom& random);

}  // namespace paceline::images
