#pragma once

// Changes of colour, as Pillow's ImageEnhance makes them, which torchvision uses: byte for byte.
//
// Thread safety: pure functions on an image that the caller owns.

#include "paceline/files/images/image.h"
#include "paceline/files/images/sample_random.h"

namespace paceline::images {

// A factor of 1 changes nothing; 0 is black, the mean grey, or the image in grey. Requires: 0 or
// above.
void adjust_brightness(Image& image, double factor);
void adjust_contrast(Image& image, double factor);
void adjust_saturation(Image& image, double factor);
// Turns the hue by this part of the circle, in [-0.5, 0.5].
void adjust_hue(Image& image, double turn);

// torchvision's ColorJitter: factors in [1 - x, 1 + x], not below 0, and a turn in [-hue, hue],
// evenly, applied in a random order. 0: that one is not changed.
struct ColourJitterOptions {
  double brightness = 0, contrast = 0, saturation = 0, hue = 0;
  bool changes() const { return brightness > 0 || contrast > 0 || saturation > 0 || hue > 0; }
};
void colour_jitter(Image& image, const ColourJitterOptions& options, SampleRandom& random);

}  // namespace paceline::images
