#include "paceline/files/images/image_pipeline.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "paceline/engine/core/check.h"
#include "paceline/files/images/resample.h"

namespace paceline::images {

namespace {

constexpr int kTries = 10;

// Rounds like Python's round(): halves to the even number.
int rounded(double value) { return static_cast<int>(std::nearbyint(value)); }

// Draws the size of a region with a random area and aspect; its position is drawn later.
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

Region random_resized_crop(Size image, Range area, Range aspect, SampleRandom& random) {
  for (int i = 0; i < kTries; ++i) {
    const auto [width, height] = draw_size(image, area, aspect, random);
    if (width > 0 && width <= image.width && height > 0 && height <= image.height)
      return draw_place(image, {width, height}, random);
  }
  auto [width, height] = image;
  const double ratio = static_cast<double>(width) / height;
  if (ratio < aspect.low) height = rounded(width / aspect.low);
  if (ratio > aspect.high) width = rounded(height * aspect.high);
  return {(image.width - width) / 2, (image.height - height) / 2, width, height};
}

Region random_erasing(Size image, const RandomErasingOptions& options, SampleRandom& random) {
  if (random.uniform() >= options.probability) return {};
  for (int i = 0; i < kTries; ++i) {
    // For erasing, torchvision defines the aspect as height / width.
    const auto [height, width] = draw_size(image, options.area, options.aspect, random);
    if (height < image.height && width < image.width && height > 0 && width > 0)
      return draw_place(image, {width, height}, random);
  }
  return {};
}

CentreCrop centre_crop(Size image, int shorter, Size crop) {
  // The limit, which is far above any useful length, prevents an overflow of int.
  const auto longer = [&](int of_shorter, int of_longer) {
    const std::int64_t length = static_cast<std::int64_t>(shorter) * of_longer / of_shorter;
    return static_cast<int>(std::clamp<std::int64_t>(length, 1, 1 << 30));
  };
  const Size resized = image.width <= image.height
                           ? Size{shorter, longer(image.width, image.height)}
                           : Size{longer(image.height, image.width), shorter};
  // If the image is smaller than the crop, the padding on the left and at the top is rounded down.
  const auto begin = [](int length, int wanted) {
    return wanted > length ? -((wanted - length) / 2) : rounded((length - wanted) / 2.0);
  };
  const Region region{begin(resized.width, crop.width), begin(resized.height, crop.height),
                      crop.width, crop.height};
  return {resized, region};
}

namespace {

// Pillow's conversion to grey: ITU-R 601-2 with weights of 16 bits.
std::uint8_t grey(const std::uint8_t* pixel) {
  return static_cast<std::uint8_t>(
      (pixel[0] * 19595 + pixel[1] * 38470 + pixel[2] * 7471 + 0x8000) >> 16);
}

// Interpolates from `base` (factor 0) to `value` (factor 1) and beyond, clipped to a byte.
std::uint8_t blend(int base, int value, float factor) {
  const float mixed = static_cast<float>(base) + factor * static_cast<float>(value - base);
  return mixed <= 0     ? std::uint8_t{0}
         : mixed >= 255 ? std::uint8_t{255}
                        : static_cast<std::uint8_t>(mixed);
}

void blend_with(Image& image, int base, double factor) {
  std::array<std::uint8_t, 256> table;
  for (int value = 0; value < 256; ++value)
    table[static_cast<std::size_t>(value)] = blend(base, value, static_cast<float>(factor));
  for (std::uint8_t& byte : image.bytes()) byte = table[byte];
}

std::uint8_t cut(int value) { return static_cast<std::uint8_t>(std::clamp(value, 0, 255)); }

// Python's colorsys with bytes and float32, as in Pillow.
std::array<std::uint8_t, 3> to_hsv(int red, int green, int blue) {
  const int largest = std::max({red, green, blue}), smallest = std::min({red, green, blue});
  if (largest == smallest) return {0, 0, cut(largest)};
  const auto range = static_cast<float>(largest - smallest);
  const float saturation = range / static_cast<float>(largest);
  const float r = static_cast<float>(largest - red) / range;
  const float g = static_cast<float>(largest - green) / range;
  const float b = static_cast<float>(largest - blue) / range;
  float hue = red == largest     ? b - g
              : green == largest ? static_cast<float>(2.0 + r - b)
                                 : static_cast<float>(4.0 + g - r);
  hue = static_cast<float>(std::fmod(hue / 6.0 + 1.0, 1.0));
  return {cut(static_cast<int>(hue * 255.0)), cut(static_cast<int>(saturation * 255.0)),
          cut(largest)};
}

void from_hsv(const std::array<std::uint8_t, 3>& hsv, std::uint8_t* pixel) {
  const auto [h, s, v] = hsv;
  if (s == 0) {
    std::fill_n(pixel, 3, v);
    return;
  }
  const float hue = static_cast<float>(h);
  const auto sixth = static_cast<int>(std::floor(hue * 6.0 / 255.0));
  const auto f = static_cast<float>(hue * 6.0 / 255.0 - static_cast<float>(sixth));
  const auto fs = static_cast<float>(static_cast<float>(s) / 255.0);
  const auto value = static_cast<float>(v);
  const std::uint8_t p = cut(static_cast<int>(std::round(value * (1.0 - fs))));
  const std::uint8_t q = cut(static_cast<int>(std::round(value * (1.0 - fs * f))));
  const std::uint8_t t = cut(static_cast<int>(std::round(value * (1.0 - fs * (1.0 - f)))));
  const std::array<std::array<std::uint8_t, 3>, 6> colours = {
      {{v, t, p}, {q, v, p}, {p, v, t}, {p, q, v}, {t, p, v}, {v, p, q}}};
  std::ranges::copy(colours[static_cast<std::size_t>(sixth % 6)], pixel);
}

double factor_near_one(double width, SampleRandom& random) {
  return random.uniform(std::max(0.0, 1 - width), 1 + width);
}

}  // namespace

void adjust_brightness(Image& image, double factor) { blend_with(image, 0, factor); }

void adjust_contrast(Image& image, double factor) {
  const auto bytes = image.bytes();
  if (bytes.empty()) return;
  std::int64_t sum = 0;
  for (std::size_t i = 0; i < bytes.size(); i += 3) sum += grey(&bytes[i]);
  const std::size_t num_pixels = bytes.size() / 3;
  const double mean = static_cast<double>(sum) / static_cast<double>(num_pixels);
  blend_with(image, static_cast<int>(std::lround(mean)), factor);
}

void adjust_saturation(Image& image, double factor) {
  const auto bytes = image.bytes();
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    const int base = grey(&bytes[i]);
    for (std::size_t channel = i; channel < i + 3; ++channel)
      bytes[channel] = blend(base, bytes[channel], static_cast<float>(factor));
  }
}

void adjust_hue(Image& image, double turn) {
  const auto bytes = image.bytes();
  const auto by = static_cast<std::uint8_t>(static_cast<int>(turn * 255));
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    auto hsv = to_hsv(bytes[i], bytes[i + 1], bytes[i + 2]);
    hsv[0] = static_cast<std::uint8_t>(hsv[0] + by);
    from_hsv(hsv, &bytes[i]);
  }
}

void colour_jitter(Image& image, const ColourJitterOptions& options, SampleRandom& random) {
  if (!options.changes()) return;
  std::array order = {0, 1, 2, 3};
  for (std::size_t i = 3; i > 0; --i)
    std::swap(order[i], order[static_cast<std::size_t>(random.below(static_cast<int>(i) + 1))]);
  // The factors are drawn in a fixed order, independent of the order in which they are applied.
  const double brightness = factor_near_one(options.brightness, random);
  const double contrast = factor_near_one(options.contrast, random);
  const double saturation = factor_near_one(options.saturation, random);
  const double turn = random.uniform(-options.hue, options.hue);
  for (const int which : order) {
    if (which == 0 && options.brightness > 0) adjust_brightness(image, brightness);
    if (which == 1 && options.contrast > 0) adjust_contrast(image, contrast);
    if (which == 2 && options.saturation > 0) adjust_saturation(image, saturation);
    if (which == 3 && options.hue > 0) adjust_hue(image, turn);
  }
}

namespace {

void require_range(const Range& range, const char* what) {
  check(range.low > 0 && range.low <= range.high && std::isfinite(range.high),
        "image pipeline: {} is from {} to {}; both must be finite and above 0, in ascending order",
        what, range.low, range.high);
}

void require_valid(const ImagePipelineOptions& options) {
  const auto [width, height] = options.size;
  check(width > 0 && height > 0 && width <= 1 << 15 && height <= 1 << 15,
        "image pipeline: size is {} x {}; width and height must be 1 to 32768", width, height);
  check(options.shorter_side > 0 && options.shorter_side <= 1 << 15,
        "image pipeline: shorter_side is {}; it must be 1 to 32768", options.shorter_side);
  for (const double probability : {options.flip_probability, options.erasing.probability}) {
    check(probability >= 0 && probability <= 1,
          "image pipeline: a probability is {}; it must be in [0, 1]", probability);
  }
  require_range(options.crop_area, "a crop's area");
  require_range(options.crop_aspect, "a crop's aspect");
  require_range(options.erasing.area, "an erased area");
  require_range(options.erasing.aspect, "an erased aspect");
  const ColourJitterOptions& jitter = options.jitter;
  check(jitter.brightness >= 0 && jitter.contrast >= 0 && jitter.saturation >= 0 &&
            jitter.hue >= 0 && jitter.hue <= 0.5,
        "image pipeline: colour jitter of {}, {}, {} and hue {}; the largest hue is 0.5",
        jitter.brightness, jitter.contrast, jitter.saturation, jitter.hue);
  check(options.reducing_gap == 0 || options.reducing_gap >= 1,
        "image pipeline: a reducing gap of {}; it must be 0, or at least 1", options.reducing_gap);
  check(options.mean.empty() || options.mean.size() == 3, "image pipeline: {} means for 3 channels",
        options.mean.size());
  check(options.std.empty() || options.std.size() == 3,
        "image pipeline: {} standard deviations for 3 channels", options.std.size());
}

// The JPEG scale denominator (1, 2, 4 or 8) at which the part is decoded before it is resized.
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

// Resizes the part to `resized` and returns a window of the result. Pixels of the window outside of
// the resized part are black.
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
    return take(image,
                random_resized_crop(image.size(), options_.crop_area, options_.crop_aspect, random),
                size, all_of_it);
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
