#include "paceline/training/data/transform.h"

#include "paceline/engine/core/check.h"
#include "paceline/files/images/sample_random.h"

namespace paceline::data {

ImageTransform::ImageTransform(const ImageShape& shape, const ImageSamplesOptions& options)
    : shape_(shape), options_(options) {
  const auto channels = static_cast<std::size_t>(shape.channels);
  check(options.mean.empty() || options.mean.size() == channels,
        "transform: {} means for {} channels", options.mean.size(), channels);
  check(options.std.empty() || options.std.size() == channels,
        "transform: {} standard deviations for {} channels", options.std.size(), channels);
  check(options.crop_padding >= 0, "transform: the crop padding {} is negative",
        options.crop_padding);
  for (std::size_t channel = 0; channel < channels; ++channel) {
    const float mean = options.mean.empty() ? 0.0f : options.mean[channel];
    const float deviation = options.std.empty() ? 1.0f : options.std[channel];
    check(deviation > 0, "transform: the standard deviation {} is not above 0", deviation);
    for (int byte = 0; byte < 256; ++byte) {
      table_.push_back((static_cast<float>(byte) / 255.0f - mean) / deviation);
    }
  }
}

ImageTransform::Placement ImageTransform::place(std::int64_t epoch, std::int64_t index) const {
  Placement placement;
  if (options_.crop_padding == 0 && !options_.random_flip) return placement;
  images::SampleRandom random(options_.seed, epoch, index);
  if (options_.crop_padding > 0) {
    const std::int64_t places = 2 * options_.crop_padding + 1;
    placement.shift_y = random.below(places) - options_.crop_padding;
    placement.shift_x = random.below(places) - options_.crop_padding;
  }
  placement.flip = options_.random_flip && (random.next() >> 63) != 0;
  return placement;
}

void ImageTransform::apply(const std::uint8_t* image, float* out, std::int64_t epoch,
                           std::int64_t index) const {
  const Placement placement = place(epoch, index);
  const bool moved = placement.flip || placement.shift_x != 0 || placement.shift_y != 0;
  const std::int64_t height = shape_.height;
  const std::int64_t width = shape_.width;
  for (std::int64_t channel = 0; channel < shape_.channels; ++channel) {
    const float* table = table_.data() + channel * 256;
    const std::uint8_t* plane = image + channel * height * width;
    float* to = options_.channels_last ? out + channel : out + channel * height * width;
    const std::int64_t stride = options_.channels_last ? shape_.channels : 1;
    if (!moved) {
      for (std::int64_t i = 0; i < height * width; ++i) to[i * stride] = table[plane[i]];
      continue;
    }
    for (std::int64_t y = 0; y < height; ++y) {
      const std::int64_t from_y = y + placement.shift_y;
      for (std::int64_t x = 0; x < width; ++x) {
        const std::int64_t from_x = (placement.flip ? width - 1 - x : x) + placement.shift_x;
        const bool inside = from_y >= 0 && from_y < height && from_x >= 0 && from_x < width;
        to[(y * width + x) * stride] = table[inside ? plane[from_y * width + from_x] : 0];
      }
    }
  }
}

}  // namespace paceline::data
