#include "paceline/files/images/crop.h"

#include <algorithm>
#include <cmath>

namespace paceline::images {
namespace {

constexpr int kTries = 10;

// As Python's round(): halves to the even number.
int rounded(double value) { return static_cast<int>(std::nearbyint(value)); }

// A region of a random area and aspect; its place is not drawn yet.
Size draw_size(Size image, const Range& area, const Range& aspect, SampleRandom& random) {
  const double pixels =
      static_cast<double>(image.width) * image.height * random.uniform(area.low, area.high);
  const double ratio = std::exp(random.uniform(std::log(aspect.low), std::log(aspect.high)));
  return {rounded(std::sqrt(pixels * ratio)), rounded(std::sqrt(pixels / ratio))};
}

Region draw_place(Size image, Size size, SampleRandom& random) {
  const auto y = static_cast<int>(random.below(image.height - size.height + 1));
  const auto x = static_cast<int>(random.below(image.width - size.width + 1));
  return {x, y, size.width, size.height};
}

}  // namespace

Region random_resized_crop(Size image, const RandomResizedCropOptions& options,
                           SampleRandom& random) {
  for (int i = 0; i < kTries; ++i) {
    const auto [width, height] = draw_size(image, options.area, options.aspect, random);
    if (width > 0 && width <= image.width && height > 0 && height <= image.height)
      return draw_place(image, {width, height}, random);
  }
  auto [width, height] = image;
  const double ratio = static_cast<double>(width) / height;
  if (ratio < options.aspect.low) height = rounded(width / options.aspect.low);
  if (ratio > options.aspect.high) width = rounded(height * options.aspect.high);
  return {(image.width - width) / 2, (image.height - height) / 2, width, height};
}

Region random_erasing(Size image, const RandomErasingOptions& options, SampleRandom& random) {
  if (random.uniform() >= options.probability) return {};
  for (int i = 0; i < kTries; ++i) {
    // torchvision's aspect is height by width here.
    const auto [height, width] = draw_size(image, options.area, options.aspect, random);
    if (height < image.height && width < image.width && height > 0 && width > 0)
      return draw_place(image, {width, height}, random);
  }
  return {};
}

CentreCrop centre_crop(Size image, int shorter, Size crop) {
  // Far beyond what is used of it, so that no aspect overflows.
  const auto longer = [&](int of_shorter, int of_longer) {
    const std::int64_t length = static_cast<std::int64_t>(shorter) * of_longer / of_shorter;
    return static_cast<int>(std::clamp<std::int64_t>(length, 1, 1 << 30));
  };
  const Size resized = image.width <= image.height
                           ? Size{shorter, longer(image.width, image.height)}
                           : Size{longer(image.height, image.width), shorter};
  // Where it is smaller, the padding on the left is the one that is rounded down.
  const auto begin = [](int length, int wanted) {
    return wanted > length ? -((wanted - length) / 2) : rounded((length - wanted) / 2.0);
  };
  const Region region{begin(resized.width, crop.width), begin(resized.height, crop.height),
                      crop.width, crop.height};
  return {resized, region};
}

}  // namespace paceline::images
