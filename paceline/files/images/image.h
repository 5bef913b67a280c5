#pragma once

// An image in memory: three bytes per pixel (red, green, blue), row after row without gaps.
// Grey-scale and palette images have been converted, and alpha has been dropped.
//
// Thread safety: none; an image is a value that can be moved.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "paceline/files/images/image_pipeline_options.h"

namespace paceline::images {

struct Region {
  int x = 0, y = 0, width = 0, height = 0;
  bool operator==(const Region&) const = default;
};

class Image {
 public:
  static constexpr std::ptrdiff_t kChannels = 3;
  // Bytes after the last pixel, so that a kernel can read four bytes at any pixel.
  static constexpr std::size_t kSlack = 16;

  Image() = default;
  // An image with undefined pixels. Requires: neither side is negative.
  explicit Image(Size size)
      : size_(size), pixels_(std::make_unique_for_overwrite<std::uint8_t[]>(num_bytes() + kSlack)) {
    for (std::size_t i = 0; i < kSlack; ++i) pixels_[num_bytes() + i] = 0;
  }

  Size size() const { return size_; }
  int width() const { return size_.width; }
  int height() const { return size_.height; }
  std::ptrdiff_t row_bytes() const { return kChannels * size_.width; }
  std::uint8_t* row(int y) { return pixels_.get() + y * row_bytes(); }
  const std::uint8_t* row(int y) const { return pixels_.get() + y * row_bytes(); }
  // Equal images have the same size and pixels.
  friend bool operator==(const Image& a, const Image& b) {
    return a.size() == b.size() && std::ranges::equal(a.bytes(), b.bytes());
  }
  std::span<std::uint8_t> bytes() { return {pixels_.get(), num_bytes()}; }
  std::span<const std::uint8_t> bytes() const { return {pixels_.get(), num_bytes()}; }

 private:
  std::size_t num_bytes() const {
    return static_cast<std::size_t>(row_bytes()) * static_cast<std::size_t>(size_.height);
  }

  Size size_;
  std::unique_ptr<std::uint8_t[]> pixels_;
};

}  // namespace paceline::images
