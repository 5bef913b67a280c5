#include "paceline/files/images/colour.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

namespace paceline::images {
namespace {

// Pillow's conversion to grey: ITU-R 601-2 with weights of 16 bits.
std::uint8_t grey(const std::uint8_t* pixel) {
  return static_cast<std::uint8_t>(
      (pixel[0] * 19595 + pixel[1] * 38470 + pixel[2] * 7471 + 0x8000) >> 16);
}

// From `base` (factor 0) to `value` (1) and beyond, cut to a byte.
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

// Python's colorsys in bytes and float32, as in Pillow.
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
  // Drawn in one order, so that which is applied first changes no factor.
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

}  // namespace paceline::images
