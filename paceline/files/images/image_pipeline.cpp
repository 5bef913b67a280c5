#include "paceline/files/images/image_pipeline.h"

#include <algorithm>
#include <cmath>

#include "paceline/engine/core/check.h"
#include "paceline/files/images/resample.h"

namespace paceline::images {
namespace {

void require_range(const Range& range, const char* what) {
  check(range.low > 0 && range.low <= range.high && std::isfinite(range.high),
        "image pipeline: {} from {} to {}", what, range.low, range.high);
}

void require_valid(const ImagePipelineOptions& options) {
  const auto [width, height] = options.size;
  check(width > 0 && height > 0 && width <= 1 << 15 && height <= 1 << 15,
        "image pipeline: a size of {} x {}", width, height);
  check(options.shorter_side > 0 && options.shorter_side <= 1 << 15,
        "image pipeline: a shorter side of {}", options.shorter_side);
  for (const double probability : {options.flip_probability, options.erasing.probability}) {
    check(probability >= 0 && probability <= 1, "image pipeline: a probability of {}", probability);
  }
  require_range(options.crop.area, "a crop's area");
  require_range(options.crop.aspect, "a crop's aspect");
  require_range(options.erasing.area, "an erased area");
  require_range(options.erasing.aspect, "an erased aspect");
  const ColourJitterOptions& jitter = options.jitter;
  check(jitter.brightness >= 0 && jitter.contrast >= 0 && jitter.saturation >= 0 &&
            jitter.hue >= 0 && jitter.hue <= 0.5,
        "image pipeline: colour jitter of {}, {}, {} and hue {}, which goes to 0.5",
        jitter.brightness, jitter.contrast, jitter.saturation, jitter.hue);
  check(options.reducing_gap == 0 || options.reducing_gap >= 1,
        "image pipeline: a reducing gap of {}, which is 0 or from 1 on", options.reducing_gap);
  check(options.mean.empty() || options.mean.size() == 3, "image pipeline: {} means for 3 channels",
        options.mean.size());
  check(options.std.empty() || options.std.size() == 3,
        "image pipeline: {} standard deviations for 3 channels", options.std.size());
}

// By which the part is divided before it is resized.
int reduction_of(const EncodedImage& image, const Region& part, Size resized, double gap) {
  if (gap == 0 || !image.can_reduce()) return 1;
  const double factor =
      std::min(part.width / (gap * resized.width), part.height / (gap * resized.height));
  return factor >= 8 ? 8 : factor >= 4 ? 4 : factor >= 2 ? 2 : 1;
}

}  // namespace

ImagePipeline::ImagePipeline(const ImagePipelineOptions& options, std::uint64_t seed)
    : options_(options), seed_(seed) {
  require_valid(options_);
  for (std::size_t channel = 0; channel < 3; ++channel) {
    const float mean = options_.mean.empty() ? 0.0F : options_.mean[channel];
    const float deviation = options_.std.empty() ? 1.0F : options_.std[channel];
    check(deviation > 0, "image pipeline: the standard deviation {} is not above 0", deviation);
    for (int byte = 0; byte < 256; ++byte)
      table_.push_back((static_cast<float>(byte) / 255.0F - mean) / deviation);
  }
}

// A window of the part, resized. The window may reach beyond it: that is black.
Image ImagePipeline::take(EncodedImage& image, const Region& part, Size resized,
                          const Region& window) const {
  const int x = std::max(0, window.x), y = std::max(0, window.y);
  const Size seen{std::min(resized.width, window.x + window.width) - x,
                  std::min(resized.height, window.y + window.height) - y};
  const int reduction = reduction_of(image, part, resized, options_.reducing_gap);
  const Size whole = image.reduced_size(reduction);
  const auto plan = [&](int begin, int length, int reduced, int out, int first, int count) {
    if (reduction == 1) return plan_axis(length, 0, length, out, first, count);
    const double from = static_cast<double>(begin) / reduction;
    const double to = std::min<double>(reduced, static_cast<double>(begin + length) / reduction);
    return plan_axis(reduced, from, to, out, first, count);
  };
  const AxisPlan columns = plan(part.x, part.width, whole.width, resized.width, x, seen.width);
  const AxisPlan rows = plan(part.y, part.height, whole.height, resized.height, y, seen.height);
  const int left = reduction == 1 ? part.x : 0, top = reduction == 1 ? part.y : 0;
  const Image source =
      image.decode({left + columns.first_input, top + rows.first_input,
                    columns.end_input - columns.first_input, rows.end_input - rows.first_input},
                   reduction);
  Image inside = resample(source, columns.first_input, rows.first_input, columns, rows);
  if (seen == Size{window.width, window.height}) return inside;
  Image padded({window.width, window.height});
  std::ranges::fill(padded.bytes(), std::uint8_t{0});
  for (int row = 0; row < seen.height; ++row) {
    std::copy_n(inside.row(row), inside.row_bytes(),
                padded.row(row + y - window.y) + Image::kChannels * (x - window.x));
  }
  return padded;
}

Image ImagePipeline::frame(EncodedImage& image, SampleRandom& random) const {
  const Size size = options_.size;
  const Region whole{0, 0, image.size().width, image.size().height};
  const Region all_of_it{0, 0, size.width, size.height};
  if (options_.framing == Framing::kWhole) return take(image, whole, size, all_of_it);
  if (options_.framing == Framing::kRandomResizedCrop)
    return take(image, random_resized_crop(image.size(), options_.crop, random), size, all_of_it);
  const CentreCrop crop = centre_crop(image.size(), options_.shorter_side, size);
  return take(image, whole, crop.resized, crop.region);
}

Image ImagePipeline::framed(std::span<const std::byte> bytes, const std::string& name,
                            SampleRandom& random) const {
  EncodedImage encoded(bytes, name, options_.decode);
  Image image = frame(encoded, random);
  colour_jitter(image, options_.jitter, random);
  return image;
}

void ImagePipeline::apply(std::span<const std::byte> bytes, const std::string& name, float* out,
                          bool channels_last, std::int64_t epoch, std::int64_t index) const {
  SampleRandom random(seed_, epoch, index);
  const Image image = framed(bytes, name, random);
  const bool mirrored =
      options_.flip_probability > 0 && random.uniform() < options_.flip_probability;
  normalise(image, mirrored, out, channels_last);
  if (options_.erasing.probability > 0)
    erase(random_erasing(options_.size, options_.erasing, random), out, channels_last, random);
}

void ImagePipeline::normalise(const Image& image, bool mirrored, float* out,
                              bool channels_last) const {
  const std::ptrdiff_t width = image.width(), plane = width * image.height();
  const std::ptrdiff_t step = channels_last ? 3 : 1, channel_step = channels_last ? 1 : plane;
  const float *red = table_.data(), *green = red + 256, *blue = green + 256;
  for (int y = 0; y < image.height(); ++y) {
    const std::uint8_t* from = image.row(y) + (mirrored ? 3 * (width - 1) : 0);
    const std::ptrdiff_t from_step = mirrored ? -3 : 3;
    float* to = out + y * width * step;
    for (std::ptrdiff_t x = 0; x < width; ++x, from += from_step, to += step) {
      to[0] = red[from[0]];
      to[channel_step] = green[from[1]];
      to[2 * channel_step] = blue[from[2]];
    }
  }
}

void ImagePipeline::erase(const Region& region, float* out, bool channels_last,
                          SampleRandom& random) const {
  const std::ptrdiff_t width = options_.size.width, plane = width * options_.size.height;
  for (std::ptrdiff_t channel = 0; channel < 3; ++channel) {
    for (std::ptrdiff_t y = region.y; y < region.y + region.height; ++y) {
      for (std::ptrdiff_t x = region.x; x < region.x + region.width; ++x) {
        const std::ptrdiff_t at = y * width + x;
        out[channels_last ? 3 * at + channel : channel * plane + at] =
            options_.erasing.with_noise ? static_cast<float>(random.normal()) : 0.0F;
      }
    }
  }
}

}  // namespace paceline::images
